package scheduler

// queue holds runs that wait for a slot: first come, first served within a tenant, one from each tenant in turn over
// tenants. Not safe for concurrent use.
//
// Invariants: a tenant is in the ring exactly if it has a waiting run; size is the number of waiting runs.
type queue struct {
	ring     []*tenant // ring[0] is served next
	byName   map[string]*tenant
	size     int
	max      int // runs
	maxShare int // runs of one tenant
}

type tenant struct {
	name string
	runs []*run
}

func newQueue(limit, share int) *queue {
	return &queue{byName: map[string]*tenant{}, max: limit, maxShare: share}
}

// push adds r, or reports false if the queue or the tenant's share of it is full.
func (q *queue) push(r *run) bool {
	t := q.byName[r.tenant]
	if q.size >= q.max || t != nil && len(t.runs) >= q.maxShare {
		return false
	}
	if t == nil {
		t = &tenant{name: r.tenant}
		q.byName[r.tenant] = t
		q.ring = append(q.ring, t)
	}
	t.runs = append(t.runs, r)
	q.size++
	return true
}

// pop takes the next run, or returns nil.
func (q *queue) pop() *run {
	if q.size == 0 {
		return nil
	}
	t := q.ring[0]
	r := t.runs[0]
	t.runs[0] = nil
	t.runs = t.runs[1:]
	q.size--
	q.ring = append(q.ring[:0], q.ring[1:]...)
	if len(t.runs) > 0 {
		q.ring = append(q.ring, t)
	} else {
		delete(q.byName, t.name)
	}
	return r
}

// remove takes r out, and reports whether it was there.
func (q *queue) remove(r *run) bool {
	t := q.byName[r.tenant]
	if t == nil {
		return false
	}
	for i, other := range t.runs {
		if other != r {
			continue
		}
		t.runs = append(t.runs[:i], t.runs[i+1:]...)
		q.size--
		if len(t.runs) == 0 {
			delete(q.byName, t.name)
			for j, u := range q.ring {
				if u == t {
					q.ring = append(q.ring[:j], q.ring[j+1:]...)
					break
				}
			}
		}
		return true
	}
	return false
}

// order calls f for every waiting run in the order in which pop would return them if none came or went, with
// positions from 1.
func (q *queue) order(f func(r *run, position int)) {
	position := 0
	for round := 0; position < q.size; round++ {
		for _, t := range q.ring {
			if round < len(t.runs) {
				position++
				f(t.runs[round], position)
			}
		}
	}
}

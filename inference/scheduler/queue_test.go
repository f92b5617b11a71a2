package scheduler

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestQueueModel compares the queue with a list of arrivals: next comes the oldest run of the tenant that has waited
// longest for its turn.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit, share = 12, 5
		q := newQueue(limit, share)
		var (
			waiting []*run   // in order of arrival
			turns   []string // tenants that wait, next first
		)
		of := func(tenant string) (n int) {
			for _, r := range waiting {
				if r.tenant == tenant {
					n++
				}
			}
			return
		}
		drop := func(r *run) {
			waiting = slices.DeleteFunc(waiting, func(x *run) bool { return x == r })
			if of(r.tenant) == 0 {
				turns = slices.DeleteFunc(turns, func(x string) bool { return x == r.tenant })
			}
		}
		next := func() *run {
			for _, r := range waiting {
				if r.tenant == turns[0] {
					return r
				}
			}
			return nil
		}
		push := func(t *rapid.T) {
			r := &run{tenant: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "tenant")}
			want := len(waiting) < limit && of(r.tenant) < share
			if got := q.push(r); got != want {
				t.Fatalf("push: %v, want %v with %d waiting", got, want, len(waiting))
			}
			if !want {
				return
			}
			if of(r.tenant) == 0 {
				turns = append(turns, r.tenant)
			}
			waiting = append(waiting, r)
		}
		t.Repeat(map[string]func(*rapid.T){
			"push":  push,
			"push2": push,
			"pop": func(t *rapid.T) {
				if len(waiting) == 0 {
					if q.pop() != nil {
						t.Fatal("pop of an empty queue")
					}
					return
				}
				want := next()
				if got := q.pop(); got != want {
					t.Fatalf("pop: %+v, want %+v", got, want)
				}
				turns = append(turns[1:], turns[0])
				drop(want)
			},
			"remove": func(t *rapid.T) {
				if q.remove(&run{tenant: "a"}) {
					t.Fatal("removed a stranger")
				}
				if len(waiting) == 0 {
					return
				}
				r := rapid.SampledFrom(waiting).Draw(t, "run")
				if !q.remove(r) || q.remove(r) {
					t.Fatal("remove once, and once only")
				}
				drop(r)
			},
			"": func(t *rapid.T) {
				if q.size != len(waiting) || len(q.ring) != len(turns) || len(q.byName) != len(turns) {
					t.Fatalf("size %d, %d tenants, %d names; want %d, %d", q.size, len(q.ring), len(q.byName), len(waiting), len(turns))
				}
				var told []*run
				q.order(func(r *run, position int) {
					if told = append(told, r); position != len(told) {
						t.Fatalf("position %d is told as number %d", position, len(told))
					}
				})
				if len(told) > 0 && told[0] != next() || len(told) != len(waiting) {
					t.Fatalf("order tells of %d runs, want %d, beginning with the next", len(told), len(waiting))
				}
			},
		})
	})
}

// TestOrderIsTheOrderOfPop pops a queue empty and compares.
func TestOrderIsTheOrderOfPop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(100, 100)
		for range rapid.IntRange(0, 20).Draw(t, "runs") {
			q.push(&run{tenant: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant")})
			if rapid.IntRange(0, 4).Draw(t, "pop") == 0 {
				q.pop()
			}
		}
		var told, popped []*run
		q.order(func(r *run, _ int) { told = append(told, r) })
		for r := q.pop(); r != nil; r = q.pop() {
			popped = append(popped, r)
		}
		if !slices.Equal(told, popped) {
			t.Fatal("order and pop disagree")
		}
	})
}

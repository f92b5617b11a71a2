package actors

import (
	"sync"

	"github.com/holdfast-ai/holdfast/proto"
)

// mailbox holds what an activation has not handled yet, in two lanes. The control lane is always served first. What
// comes from inside (commits, effects, sweeps) has a natural bound and is never refused; what comes from clients is.
//
// Whoever pushes and is told to schedule must make the activation run; it runs until next finds nothing.
type mailbox struct {
	maxUser    int
	maxControl int // client messages in the control lane

	mu struct {
		sync.Mutex
		control   queue
		user      queue
		clients   int  // client messages in control
		scheduled bool // the activation runs, or is about to
		sealed    bool // nothing from outside is taken any more
		closed    bool // nothing is taken any more
	}
}

type pushed int

const (
	pushedOK pushed = iota
	pushedFull
	pushedSealed
)

// request is a client's message.
type request struct {
	principal proto.Principal
	ev        Message
	reply     *reply
	control   bool
}

// push adds something from outside: a *request, or an internal item that may start an activation.
func (m *mailbox) push(item any, control bool) (result pushed, schedule bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.sealed {
		return pushedSealed, false
	}
	_, client := item.(*request)
	switch {
	case !control:
		if m.mu.user.len() >= m.maxUser {
			return pushedFull, false
		}
		m.mu.user.push(item)
	case client:
		if m.mu.clients >= m.maxControl {
			return pushedFull, false
		}
		m.mu.clients++
		m.mu.control.push(item)
	default:
		m.mu.control.push(item)
	}
	return pushedOK, m.scheduleLocked()
}

// pushInternal adds something that belongs to the activation itself; a sealed mailbox takes it still.
func (m *mailbox) pushInternal(item any) (schedule bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return false
	}
	m.mu.control.push(item)
	return m.scheduleLocked()
}

func (m *mailbox) scheduleLocked() bool {
	if m.mu.scheduled {
		return false
	}
	m.mu.scheduled = true
	return true
}

// next returns what to handle now, from the user lane only if user is set. When it returns false the activation must
// stop running: the next push schedules it again.
func (m *mailbox) next(user bool) (any, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if item, ok := m.mu.control.pop(); ok {
		if _, client := item.(*request); client {
			m.mu.clients--
		}
		return item, true
	}
	if user {
		if item, ok := m.mu.user.pop(); ok {
			return item, true
		}
	}
	m.mu.scheduled = false
	return nil, false
}

// seal refuses everything from outside from now on and returns what came from there and was not handled.
func (m *mailbox) seal() []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.sealed = true
	m.mu.clients = 0
	var outside []any
	var inside queue
	for {
		item, ok := m.mu.control.pop()
		if !ok {
			break
		}
		switch item.(type) {
		case *request, *firedAlarm:
			outside = append(outside, item)
		default:
			inside.push(item)
		}
	}
	m.mu.control = inside
	for {
		item, ok := m.mu.user.pop()
		if !ok {
			return outside
		}
		outside = append(outside, item)
	}
}

// sealIfEmpty seals an empty mailbox, and reports whether it was.
func (m *mailbox) sealIfEmpty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.control.len() > 0 || m.mu.user.len() > 0 {
		return false
	}
	m.mu.sealed = true
	return true
}

func (m *mailbox) isSealed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.sealed
}

// close makes the mailbox deaf.
func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.closed = true
	m.mu.control, m.mu.user = queue{}, queue{}
}

// queue is a first-in, first-out list that gives its memory back when empty.
type queue struct {
	items []any
	head  int
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) push(item any) {
	if q.head > 32 && q.head*2 > len(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, item)
}

func (q *queue) pop() (any, bool) {
	if q.head == len(q.items) {
		return nil, false
	}
	item := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.head = 0
		if cap(q.items) > 64 {
			q.items = nil
		} else {
			q.items = q.items[:0]
		}
	}
	return item, true
}

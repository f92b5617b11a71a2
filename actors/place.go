package actors

import (
	"fmt"
	"sync"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/storage"
)

// place is where an address is in this process: its activation, if any, and what readers see. It exists while
// something refers to it: an activation, a cursor, a call in progress.
type place struct {
	host *Host
	id   ID
	kind *Kind
	refs int // guarded by Host.mu

	feed feed

	// load serialises what claims an epoch: loading an activation, and looking at storage for a reader while there
	// is none.
	load sync.Mutex

	mu struct {
		sync.Mutex
		act      *Activation // the newest; may have ended
		failures int         // activations in a row that ended by a failure
	}
}

// activation returns one that takes messages, making it if need be.
func (p *place) activation() (*Activation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.mu.act; a != nil && !a.mail.isSealed() {
		return a, nil
	}
	a, err := p.host.newActivation(p, p.mu.act)
	if err != nil {
		return nil, err
	}
	p.mu.act = a
	return a, nil
}

// left notes that a has ended.
func (p *place) left(a *Activation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.act == a {
		p.mu.act = nil
	}
}

// failed counts a failure and returns how many there were in a row.
func (p *place) failed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.failures++
	return p.mu.failures
}

func (p *place) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.failures = 0
}

// claim activates the object in storage and sets the feed to what is durable.
func (p *place) claim() (*storage.Object, error) {
	p.load.Lock()
	defer p.load.Unlock()
	return p.claimLocked()
}

func (p *place) claimLocked() (*storage.Object, error) {
	o, err := p.host.o.Store.Activate(p.id.address())
	if err != nil {
		return nil, fmt.Errorf("activate %s: %w", p.id, err)
	}
	p.feed.reset(p.position(o, o.Meta()))
	return o, nil
}

func (p *place) position(o *storage.Object, m *statepb.Meta) position {
	pos := position{
		ref:        o.Ref(),
		generation: p.host.o.Store.Node().Generation,
		firstHeld:  max(m.GetFirstOffset(), 1),
		watermark:  o.LastOffset(),
	}
	if p.kind.Live != nil && m != nil {
		pos.live = p.kind.Live(m.GetState())
	}
	return pos
}

// look makes sure that the feed is loaded, without an activation. One that exists has loaded it or is about to.
func (p *place) look() error {
	p.load.Lock()
	defer p.load.Unlock()
	if p.feed.isLoaded() {
		return nil
	}
	o, err := p.claimLocked()
	if err != nil {
		return err
	}
	o.Release()
	return nil
}

// deliver hands an item to the object, activating it if need be.
func (p *place) deliver(item any, control bool) error {
	for {
		a, err := p.activation()
		if err != nil {
			return err
		}
		result, schedule := a.mail.push(item, control)
		switch result {
		case pushedOK:
			if schedule {
				a.schedule()
			}
			return nil
		case pushedFull:
			p.host.metrics.refused.WithLabelValues("mailbox").Inc()
			return proto.Errorf(proto.CodeOverloaded, "too many messages wait for this object")
		case pushedSealed:
			// It has just ended; the next one takes it.
		}
	}
}

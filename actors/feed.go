package actors

import (
	"sync"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
)

// feed is what readers see of an object: its durable position, a ring of recent entries, the latest status. It lives as
// long as anybody holds the object's place, over activations. Nothing in it is ahead of storage (invariant 2):
//
//	ring covers (watermark-len(ring), watermark]
type feed struct {
	maxBytes int

	mu struct {
		sync.Mutex
		loaded     bool
		ref        storage.Ref
		generation uint64
		firstHeld  uint64
		watermark  uint64
		live       uint64 // turn that runs or waits at the front
		ring       [][]byte
		bytes      int
		status     *wirepb.Status
		statusSeq  uint64
		hungry     []*cursor // have found nothing and are to be woken
	}
}

func (f *feed) isLoaded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.loaded
}

// position is what storage says of an object that nobody writes to at that moment.
type position struct {
	ref        storage.Ref
	generation uint64
	firstHeld  uint64
	watermark  uint64
	live       uint64
}

// reset takes over a position. Readers of another incarnation find out by themselves.
func (f *feed) reset(p position) {
	f.mu.Lock()
	if f.mu.ref != p.ref || f.mu.watermark != p.watermark {
		f.mu.ring, f.mu.bytes = nil, 0
	}
	changed := f.mu.loaded && (f.mu.ref != p.ref || f.mu.watermark != p.watermark)
	f.mu.loaded = true
	f.mu.ref, f.mu.generation, f.mu.firstHeld, f.mu.watermark, f.mu.live = p.ref, p.generation, p.firstHeld, p.watermark, p.live
	var wake []*cursor
	if changed {
		wake = f.takeHungryLocked()
	}
	f.mu.Unlock()
	wakeAll(wake)
}

// publish moves the watermark over entries [first, first+len(entries)), which are durable, and wakes who waits.
func (f *feed) publish(first uint64, entries [][]byte) {
	f.mu.Lock()
	if first != f.mu.watermark+1 {
		f.mu.ring, f.mu.bytes = nil, 0
	}
	f.mu.watermark = first + uint64(len(entries)) - 1
	f.mu.ring = append(f.mu.ring, entries...)
	for _, e := range entries {
		f.mu.bytes += len(e)
	}
	drop := 0
	for f.mu.bytes > f.maxBytes && drop < len(f.mu.ring)-1 {
		f.mu.bytes -= len(f.mu.ring[drop])
		f.mu.ring[drop] = nil
		drop++
	}
	f.mu.ring = f.mu.ring[drop:]
	wake := f.takeHungryLocked()
	f.mu.Unlock()
	wakeAll(wake)
}

// setStatus replaces the ephemeral status.
func (f *feed) setStatus(st *wirepb.Status) {
	f.mu.Lock()
	f.mu.status = st
	f.mu.statusSeq++
	wake := f.takeHungryLocked()
	f.mu.Unlock()
	wakeAll(wake)
}

func (f *feed) takeHungryLocked() []*cursor {
	hungry := f.mu.hungry
	f.mu.hungry = nil
	for _, c := range hungry {
		c.waiting = false
	}
	return hungry
}

func (f *feed) setLive(turn uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.live = turn
}

// forget drops what can be read from storage or is no longer true, when an activation has ended.
func (f *feed) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.ring, f.mu.bytes = nil, 0
	f.mu.status = nil
}

func wakeAll(cursors []*cursor) {
	for _, c := range cursors {
		c.notify()
	}
}

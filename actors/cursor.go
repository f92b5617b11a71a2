package actors

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
)

// cursor is one reader of one object. All that it knows is where it stands; whether it reads the ring or storage is
// decided by that position each time, so that nothing is skipped or repeated on the border.
type cursor struct {
	host  *Host
	place *place

	// Owned by the reader.
	ref        storage.Ref
	generation uint64
	offset     uint64 // last one returned
	statusSeq  uint64 // last one returned
	attached   *wirepb.Attached
	dead       error

	waiting bool // in feed.hungry; guarded by feed.mu

	mu struct {
		sync.Mutex
		wake func() // nil when closed
	}
}

// attach makes a cursor where a asks for.
func (p *place) attach(a *wirepb.Attach, wake func()) (*cursor, error) {
	f := &p.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &cursor{host: p.host, place: p, ref: f.mu.ref, generation: f.mu.generation}
	c.mu.wake = wake
	held := f.mu.firstHeld
	if held == 0 {
		held = 1
	}
	after := a.GetAfter()
	fresh := after.GetGeneration() == 0 && after.GetIncarnation() == 0
	switch {
	case a.GetTail() > 0:
		c.offset = max(held-1, f.mu.watermark-min(a.GetTail(), f.mu.watermark))
	case !fresh && (after.GetGeneration() != c.generation || after.GetIncarnation() != c.ref.Incarnation):
		return nil, f.goneLocked("the cursor is of another life of this object")
	case fresh && after.GetOffset() == 0:
		c.offset = held - 1
	case after.GetOffset()+1 < held:
		return nil, f.goneLocked("entries after offset %d are no longer held", after.GetOffset())
	case after.GetOffset() > f.mu.watermark:
		return nil, f.goneLocked("offset %d is ahead of this object", after.GetOffset())
	default:
		c.offset = after.GetOffset()
	}
	c.attached = &wirepb.Attached{
		From:      &wirepb.Cursor{Generation: c.generation, Incarnation: c.ref.Incarnation, Offset: c.offset},
		Watermark: f.mu.watermark,
		FirstHeld: held,
		LiveTurn:  f.mu.live,
	}
	return c, nil
}

func (f *feed) goneLocked(format string, args ...any) *proto.Error {
	e := proto.Errorf(proto.CodeGone, format, args...)
	e.FirstHeld = max(f.mu.firstHeld, 1)
	e.Present = &wirepb.Cursor{Generation: f.mu.generation, Incarnation: f.mu.ref.Incarnation, Offset: f.mu.watermark}
	return e
}

// Attached implements proto.Cursor.
func (c *cursor) Attached() *wirepb.Attached { return c.attached }

// Next implements proto.Cursor.
func (c *cursor) Next(ctx context.Context, dst []proto.Item, maxBytes int) ([]proto.Item, error) {
	if c.dead != nil {
		return dst, c.dead
	}
	start := len(dst)
	for bytes := 0; bytes < maxBytes || len(dst) == start; {
		var upTo uint64
		var n int
		dst, n, upTo, c.dead = c.recent(dst, maxBytes-bytes, start)
		bytes += n
		if c.dead != nil {
			return dst, c.dead
		}
		if upTo == 0 {
			return dst, nil
		}
		dst, n, c.dead = c.stored(dst, upTo, maxBytes-bytes)
		bytes += n
		if c.dead != nil {
			return dst, c.dead
		}
		if ctx.Err() != nil {
			return dst, nil
		}
	}
	return dst, nil
}

// recent appends from the ring and, at the watermark, the status. upTo is not 0 when storage must be read up to there
// first. A reader that gets nothing at all in this call of Next, which began at start, is put down to be woken.
func (c *cursor) recent(dst []proto.Item, maxBytes, start int) (_ []proto.Item, bytes int, upTo uint64, err error) {
	f := &c.place.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.ref != f.mu.ref || c.generation != f.mu.generation {
		return dst, 0, 0, f.goneLocked("the object has begun another life")
	}
	if held := f.mu.firstHeld; c.offset+1 < held {
		return dst, 0, 0, f.goneLocked("entries after offset %d are no longer held", c.offset)
	}
	if c.offset < f.mu.watermark {
		behind := f.mu.watermark - c.offset
		if behind > uint64(len(f.mu.ring)) {
			return dst, 0, f.mu.watermark - uint64(len(f.mu.ring)), nil
		}
		for _, entry := range f.mu.ring[uint64(len(f.mu.ring))-behind:] {
			c.offset++
			dst = append(dst, proto.Item{Offset: c.offset, Entry: entry})
			if bytes += len(entry); bytes >= maxBytes {
				return dst, bytes, 0, nil
			}
		}
	}
	if c.statusSeq != f.mu.statusSeq && f.mu.status != nil {
		c.statusSeq = f.mu.statusSeq
		dst = append(dst, proto.Item{Status: f.mu.status})
	}
	if len(dst) == start && !c.waiting {
		c.waiting = true
		f.mu.hungry = append(f.mu.hungry, c)
	}
	return dst, bytes, 0, nil
}

// stored appends entries up to and including upTo from storage, which holds them: upTo is not above the watermark.
func (c *cursor) stored(dst []proto.Item, upTo uint64, maxBytes int) (_ []proto.Item, bytes int, err error) {
	frames, err := c.host.o.Store.ReadLog(c.ref, c.offset, upTo, max(maxBytes, 1))
	switch {
	case errors.Is(err, storage.ErrGone):
		f := &c.place.feed
		f.mu.Lock()
		defer f.mu.Unlock()
		return dst, 0, f.goneLocked("entries after offset %d are no longer held", c.offset)
	case err != nil:
		return dst, 0, coded(fmt.Errorf("read %s after offset %d: %w", c.place.id, c.offset, err))
	case len(frames) == 0:
		return dst, 0, coded(fmt.Errorf("read %s: no entry %d below the watermark: %w", c.place.id, c.offset+1, storage.ErrCorrupt))
	}
	for _, fr := range frames {
		if fr.Offset != c.offset+1 {
			return dst, bytes, coded(fmt.Errorf("read %s: entry %d follows %d: %w", c.place.id, fr.Offset, c.offset, storage.ErrCorrupt))
		}
		c.offset++
		dst = append(dst, proto.Item{Offset: fr.Offset, Entry: fr.Data})
		bytes += len(fr.Data)
	}
	return dst, bytes, nil
}

// notify calls wake unless the cursor is closed. The lock is held meanwhile: that is what makes Close final.
func (c *cursor) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.wake != nil {
		c.mu.wake()
	}
}

// Close implements proto.Cursor. It must not be called from wake, nor while holding a lock that wake takes.
func (c *cursor) Close() {
	c.mu.Lock()
	open := c.mu.wake != nil
	c.mu.wake = nil
	c.mu.Unlock()
	if !open {
		return
	}
	f := &c.place.feed
	f.mu.Lock()
	if c.waiting {
		for i, h := range f.mu.hungry {
			if h == c {
				f.mu.hungry = append(f.mu.hungry[:i], f.mu.hungry[i+1:]...)
				break
			}
		}
	}
	f.mu.Unlock()
	c.host.release(c.place)
	c.host.metrics.cursors.Dec()
}

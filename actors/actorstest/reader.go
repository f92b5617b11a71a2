package actorstest

import (
	"context"
	"fmt"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Patience is how long anything may take before a test fails.
const Patience = 30 * time.Second

// Reader follows one object and checks, as it goes, that each offset comes exactly once, in order, and that the bytes are
// those that every other reader of the harness saw there. Not safe for concurrent use.
type Reader struct {
	Cursor   proto.Cursor
	Attached *wirepb.Attached
	Entries  []*wirepb.Entry
	Statuses []*wirepb.Status

	h      *Harness
	tb     testing.TB
	object string
	last   uint64
	wake   chan struct{}
	closed bool
}

// Offset is the last one seen.
func (r *Reader) Offset() uint64 { return r.last }

// Pull reads what there is now, at most about maxBytes, and returns how much it was.
func (r *Reader) Pull(maxBytes int) (int, error) {
	items, err := r.Cursor.Next(context.Background(), nil, maxBytes)
	for _, it := range items {
		if it.Status != nil {
			r.Statuses = append(r.Statuses, it.Status)
			continue
		}
		if it.Offset != r.last+1 {
			r.tb.Errorf("%s: offset %d follows %d", r.object, it.Offset, r.last)
		}
		r.last = it.Offset
		e := new(wirepb.Entry)
		if err := pb.Unmarshal(it.Entry, e); err != nil || e.Offset != it.Offset {
			r.tb.Errorf("%s: offset %d holds entry %d (%v)", r.object, it.Offset, e.Offset, err)
		}
		r.h.saw(r.tb, r.object, it.Offset, it.Entry)
		r.Entries = append(r.Entries, e)
	}
	return len(items), err
}

// Until reads until f holds for an entry, and returns it; it fails the test when that takes too long.
func (r *Reader) Until(what string, f func(*wirepb.Entry) bool) *wirepb.Entry {
	r.tb.Helper()
	seen := 0
	return await(r, what, func() *wirepb.Entry {
		for ; seen < len(r.Entries); seen++ {
			if f(r.Entries[seen]) {
				return r.Entries[seen]
			}
		}
		return nil
	})
}

// UntilTerminal reads until a turn has ended.
func (r *Reader) UntilTerminal(turn uint64) *wirepb.Terminal {
	r.tb.Helper()
	e := r.Until(fmt.Sprintf("the terminal entry of turn %d", turn), func(e *wirepb.Entry) bool {
		return e.Turn == turn && e.GetTerminal() != nil
	})
	return e.GetTerminal()
}

// UntilTokens reads until a turn has said n tokens.
func (r *Reader) UntilTokens(turn uint64, n int) {
	r.tb.Helper()
	await(r, fmt.Sprintf("%d tokens of turn %d", n, turn), func() *bool {
		if ok := len(r.Tokens(turn)) >= n; ok {
			return &ok
		}
		return nil
	})
}

// UntilStatus reads until f holds for a status.
func (r *Reader) UntilStatus(what string, f func(*wirepb.Status) bool) *wirepb.Status {
	r.tb.Helper()
	seen := 0
	return await(r, what, func() *wirepb.Status {
		for ; seen < len(r.Statuses); seen++ {
			if f(r.Statuses[seen]) {
				return r.Statuses[seen]
			}
		}
		return nil
	})
}

func await[T any](r *Reader, what string, f func() *T) *T {
	r.tb.Helper()
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	for {
		if v := f(); v != nil {
			return v
		}
		n, err := r.Pull(1 << 20)
		if err != nil {
			r.tb.Fatalf("%s: waiting for %s after offset %d: %v", r.object, what, r.last, err)
		}
		if n > 0 {
			continue
		}
		select {
		case <-r.wake:
		case <-timeout.C:
			r.tb.Fatalf("%s: waited too long for %s after offset %d", r.object, what, r.last)
		}
	}
}

// Tokens are those of a turn seen so far.
func (r *Reader) Tokens(turn uint64) []uint32 {
	var all []uint32
	for _, e := range r.Entries {
		if e.Turn == turn {
			all = append(all, e.GetChunk().GetTokens()...)
		}
	}
	return all
}

// Text is what a turn has said so far.
func (r *Reader) Text(turn uint64) string {
	var s string
	for _, e := range r.Entries {
		if e.Turn == turn {
			s += e.GetChunk().GetText()
		}
	}
	return s
}

// Attempts are those of a turn seen so far.
func (r *Reader) Attempts(turn uint64) []*wirepb.Attempt {
	var all []*wirepb.Attempt
	for _, e := range r.Entries {
		if a := e.GetAttempt(); a != nil && e.Turn == turn {
			all = append(all, a)
		}
	}
	return all
}

// Close ends the reader, as a lost connection does.
func (r *Reader) Close() {
	if !r.closed {
		r.closed = true
		r.Cursor.Close()
	}
}

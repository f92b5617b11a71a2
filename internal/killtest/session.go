package killtest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// session is one object with everything that clients have seen of it. Its reader goroutines and its writer share it.
type session struct {
	object string
	model  string // "" is the server's default
	ask    func(n int) string
	limit  int // messages in all; 0 is no limit
	mu     struct {
		sync.Mutex
		seen     map[uint64][]byte // offset to entry bytes: first sight
		last     uint64            // highest offset such that all below were seen by the tail reader
		accepted map[string]uint64 // message id to turn, as the server said
		sent     map[string]string // message id to text, maybe never accepted
		open     map[uint64]bool   // turns with a user message but no terminal, as seen
		faults   []string
		resumes  int
	}
}

func newSession(object, model string, ask func(int) string) *session {
	s := &session{object: object, model: model, ask: ask}
	s.mu.seen = map[uint64][]byte{}
	s.mu.accepted = map[string]uint64{}
	s.mu.sent = map[string]string{}
	s.mu.open = map[uint64]bool{}
	return s
}

func (s *session) faultf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faultLocked(format, args...)
}

func (s *session) faultLocked(format string, args ...any) {
	if len(s.mu.faults) < 20 {
		s.mu.faults = append(s.mu.faults, s.object+": "+fmt.Sprintf(format, args...))
	}
}

// note records an entry, and a fault if another reader, or this one before a crash, saw other bytes there.
func (s *session) note(e *wirepb.Entry, raw []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.mu.seen[e.Offset]; ok {
		if !bytes.Equal(old, raw) {
			s.faultLocked("offset %d changed:\n  was %x\n  is  %x", e.Offset, old, raw)
		}
		return
	}
	s.mu.seen[e.Offset] = raw
	for s.mu.seen[s.mu.last+1] != nil {
		s.mu.last++
	}
	switch {
	case e.GetUserMessage() != nil:
		s.mu.open[e.Turn] = true
	case e.GetTerminal() != nil:
		delete(s.mu.open, e.Turn)
	}
}

// read follows the log from a cursor until the connection ends: a place that every seen offset is checked against.
func (s *session) read(ctx context.Context, addr string, fromStart bool) {
	c, err := dial(ctx, addr)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	defer c.close()
	s.mu.Lock()
	after, floor := s.mu.last, s.mu.last
	s.mu.resumes++
	s.mu.Unlock()
	if fromStart {
		after = 0
	}
	if c.write(&wirepb.Frame{Object: s.object, Request: 1, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{After: &wirepb.Cursor{Offset: after}}}}) != nil {
		return
	}
	for next := after + 1; ; {
		f, raw, err := c.read()
		if err != nil {
			return
		}
		if e := f.GetError(); e != nil {
			s.faultf("reader refused: %s %s", e.Code, e.Message)
			return
		}
		if a := f.GetAttached(); a != nil {
			if a.From.GetOffset() != after {
				s.faultf("attached after %d, asked for %d", a.From.GetOffset(), after)
			}
			if a.Watermark < floor {
				s.faultf("watermark %d is below offset %d, which a client had seen before it asked", a.Watermark, floor)
			}
		}
		e := f.GetEntry()
		if e == nil {
			continue
		}
		if e.Offset != next {
			s.faultf("offset %d where %d comes next", e.Offset, next)
			return
		}
		next++
		s.note(e, raw)
	}
}

// submit sends message number n, again and again over crashes, until the server has accepted it.
func (s *session) submit(ctx context.Context, addr string, n int, rng *rand.Rand) {
	id := fmt.Sprintf("m%d", n)
	text := s.ask(n)
	s.mu.Lock()
	s.mu.sent[id] = text
	s.mu.Unlock()
	c, err := dial(ctx, addr)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	defer c.close()
	times := 1 + rng.IntN(2) // the same id twice must not make two turns
	for range times {
		opt := &wirepb.Options{Model: s.model, Seed: proto.Uint64(uint64(n) + 7), MaxTokens: proto.Uint32(40)}
		switch {
		case s.model == "":
			opt.Temperature = proto.Float32(0) // samples depend on the turn's offset, which another session does not share
		case n%2 == 1:
			opt.Temperature = proto.Float32(0.8)
		}
		f := &wirepb.Frame{Object: s.object, Request: 2, Body: &wirepb.Frame_Submit{Submit: &wirepb.Submit{MessageId: id, Text: text, Options: opt}}}
		if c.write(f) != nil {
			return
		}
	}
	for range times {
		f, _, err := c.read()
		if err != nil {
			return
		}
		switch b := f.Body.(type) {
		case *wirepb.Frame_Accepted:
			s.accept(id, b.Accepted.Turn)
		case *wirepb.Frame_Error:
			if !b.Error.Retryable {
				s.faultf("submit of %s refused: %s %s", id, b.Error.Code, b.Error.Message)
			}
			return
		}
	}
}

func (s *session) accept(id string, turn uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.mu.accepted[id]; ok && old != turn {
		s.faultLocked("message %s started turn %d and turn %d", id, old, turn)
	}
	s.mu.accepted[id] = turn
}

func (s *session) isAccepted(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.mu.accepted[fmt.Sprintf("m%d", n)]
	return ok
}

// drive submits messages first, first+1, … each until accepted, and keeps one reader at the tail and one that starts
// at 0 now and then, until ctx ends. It returns the number of the next message.
func (s *session) drive(ctx context.Context, addr string, first int, rng *rand.Rand) int {
	var wg sync.WaitGroup
	defer wg.Wait() // the readers stay until ctx ends
	readerSeed := rng.Uint64()
	wg.Go(func() {
		r := rand.New(rand.NewPCG(readerSeed, 1))
		for ctx.Err() == nil {
			// Leave after a random while and come back at the cursor: a resume without any crash.
			rctx, cancel := context.WithTimeout(ctx, time.Duration(20+r.IntN(400))*time.Millisecond)
			s.read(rctx, addr, r.IntN(8) == 0)
			cancel()
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			s.read(ctx, addr, false) // a second device that stays
		}
	})
	n := first
	for ctx.Err() == nil && (s.limit == 0 || n < s.limit) {
		s.submit(ctx, addr, n, rng)
		if s.isAccepted(n) {
			n++
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(rng.IntN(150)) * time.Millisecond):
			}
		}
	}
	return n
}

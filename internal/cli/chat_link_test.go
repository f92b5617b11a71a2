package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/internal/wiretest"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

func follow(t *testing.T, s *wiretest.Server) *clientLink {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	l := openLink(t.Context(), linkOptions{server: u, session: "bay", tail: 100})
	t.Cleanup(l.Close)
	return l
}

// next returns the next event of a kind, and fails at the end of the link.
func next(t *testing.T, l *clientLink, is func(event) bool) event {
	t.Helper()
	for {
		select {
		case ev := <-l.Events():
			if is(ev) {
				return ev
			}
			if ev.err != nil {
				t.Fatalf("the link ended: %v", ev.err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the link says nothing")
		}
	}
}

func isEntry(ev event) bool    { return ev.entry != nil }
func isCaughtUp(ev event) bool { return ev.caughtUp }

func checkLeaks(t *testing.T) { t.Cleanup(func() { goleak.VerifyNone(t) }) }

// TestLinkResumes cuts the connection at every third entry; each is given once and in order.
func TestLinkResumes(t *testing.T) {
	checkLeaks(t)
	s := wiretest.New(t, wiretest.Options{})
	log := s.Log("default/session/bay")
	chunk := func(i int) {
		log.Append(&wirepb.Entry{Turn: 1, Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: fmt.Sprint(i)}}})
	}
	l := follow(t, s)
	next(t, l, isCaughtUp)
	for i := 1; i <= 12; i++ {
		chunk(i)
		if i%3 == 0 {
			s.Cut()
			if i%2 == 0 {
				chunk(i + 1) // while nobody listens
				i++
				if got := next(t, l, isEntry).entry; got.Offset != uint64(i-1) {
					t.Fatalf("entry %d, want %d", got.Offset, i-1)
				}
			}
		}
		if got := next(t, l, isEntry).entry; got.Offset != uint64(i) || got.GetChunk().Text != fmt.Sprint(i) {
			t.Fatalf("entry %d %q, want %d", got.Offset, got.GetChunk().Text, i)
		}
	}
}

func TestLinkSubmits(t *testing.T) {
	checkLeaks(t)
	s := wiretest.New(t, wiretest.Options{})
	l := follow(t, s)
	next(t, l, isCaughtUp)
	s.Down(true)
	s.Cut()
	next(t, l, func(ev event) bool { return ev.lost })
	result := make(chan accepted, 1)
	go func() {
		turn, err := l.Submit(t.Context(), "m1", "hello")
		result <- accepted{turn, err}
	}()
	s.RefuseNext(&wirepb.Error{Code: "overloaded", Message: "full", Retryable: true, RetryAfterMs: 1})
	s.Down(false)
	ev := next(t, l, isEntry)
	if a := <-result; a.err != nil || a.turn != ev.entry.Turn {
		t.Errorf("accepted as turn %d, %v; the message is turn %d", a.turn, a.err, ev.entry.Turn)
	}
	s.RefuseNext(&wirepb.Error{Code: "too_large", Message: "too \x1b long", Hint: "less"})
	var refused *proto.Error
	if _, err := l.Submit(t.Context(), "m2", "x"); !errors.As(err, &refused) || refused.Code != proto.CodeTooLarge || refused.Message != "too ␛ long" {
		t.Errorf("refused with %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Down(true)
	s.Cut()
	if _, err := l.Submit(ctx, "m3", "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("given up with %v", err)
	}
}

func TestLinkStops(t *testing.T) {
	checkLeaks(t)
	s := wiretest.New(t, wiretest.Options{OnSubmit: func(turn *wiretest.Turn) {
		<-turn.Stopped
		turn.End(&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED})
	}})
	l := follow(t, s)
	next(t, l, isCaughtUp)
	done := make(chan error, 1)
	go func() {
		turn, err := l.Submit(t.Context(), "m1", "hello")
		s.Down(true)
		s.Cut()
		l.Stop(turn) // while there is no connection: kept for the next
		s.Down(false)
		done <- err
	}()
	ev := next(t, l, func(ev event) bool { return ev.entry.GetTerminal() != nil })
	if ev.entry.GetTerminal().Outcome != wirepb.Outcome_OUTCOME_STOPPED {
		t.Errorf("ended as %s", ev.entry.GetTerminal().Outcome)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLinkOfAnotherHistory(t *testing.T) {
	checkLeaks(t)
	s := wiretest.New(t, wiretest.Options{})
	log := s.Log("default/session/bay")
	log.Append(&wirepb.Entry{Body: &wirepb.Entry_State{State: &wirepb.State{Key: "a"}}})
	l := follow(t, s)
	next(t, l, isEntry)
	log.Replace()
	s.Cut()
	next(t, l, func(ev event) bool { return ev.reset })
	log.Append(&wirepb.Entry{Body: &wirepb.Entry_State{State: &wirepb.State{Key: "b"}}})
	if got := next(t, l, isEntry).entry; got.Offset != 1 || got.GetState().Key != "b" {
		t.Errorf("the new history begins with %v", got)
	}
}

func TestLinkEnding(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(s *wiretest.Server)
		want string
		is   error
	}{
		{"down at the start", func(s *wiretest.Server) { s.Down(true) }, "503", errUnreachable},
		{"fatal", func(s *wiretest.Server) { s.Fatal(4403) }, "forbidden: this page may not speak to the server", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkLeaks(t)
			s := wiretest.New(t, wiretest.Options{})
			c.do(s)
			l := follow(t, s)
			ev := next(t, l, func(ev event) bool { return ev.err != nil })
			if !strings.Contains(ev.err.Error(), c.want) || (c.is != nil && !errors.Is(ev.err, c.is)) {
				t.Errorf("ended with %v, want %q", ev.err, c.want)
			}
			if got := s.Dials(); got != 1 {
				t.Errorf("%d connections, want 1", got)
			}
		})
	}
}

func TestLinkDrained(t *testing.T) {
	checkLeaks(t)
	s := wiretest.New(t, wiretest.Options{})
	l := follow(t, s)
	next(t, l, isCaughtUp)
	s.Drain(time.Millisecond)
	next(t, l, func(ev event) bool { return ev.lost })
	next(t, l, isCaughtUp)
	if got := s.Dials(); got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
}

// TestLinkSilent: a server that says nothing for two and a half of its ping intervals is given up.
func TestLinkSilent(t *testing.T) {
	checkLeaks(t)
	s := wiretest.New(t, wiretest.Options{PingIntervalMS: 20})
	l := follow(t, s)
	next(t, l, isCaughtUp)
	next(t, l, func(ev event) bool { return ev.lost })
}

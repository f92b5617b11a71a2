package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// fakeLink is a link whose other side is the test: what it is asked comes out of calls, in order.
type fakeLink struct {
	events chan event
	calls  chan string
	accept chan accepted // answers to Submit
	offset uint64
}

func newFakeLink() *fakeLink {
	return &fakeLink{events: make(chan event), calls: make(chan string, 10), accept: make(chan accepted, 10)}
}

func (f *fakeLink) Events() <-chan event { return f.events }

func (f *fakeLink) Submit(ctx context.Context, id, text string) (uint64, error) {
	f.calls <- "submit " + id + " " + text
	select {
	case a := <-f.accept:
		return a.turn, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (f *fakeLink) Stop(turn uint64) { f.calls <- "stop " + string(rune('0'+turn)) }
func (f *fakeLink) Close()           {}

func (f *fakeLink) entry(turn uint64, body any) uint64 {
	f.offset++
	e := &wirepb.Entry{Offset: f.offset, Turn: turn}
	switch b := body.(type) {
	case *wirepb.UserMessage:
		e.Turn, e.Body = f.offset, &wirepb.Entry_UserMessage{UserMessage: b}
	case string:
		e.Body = &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: b}}
	case *wirepb.Terminal:
		e.Body = &wirepb.Entry_Terminal{Terminal: b}
	}
	f.events <- event{entry: e}
	return e.Turn
}

func completed() *wirepb.Terminal {
	return &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_COMPLETED, FinishReason: "stop"}
}

// stage is a chat under test on a plain screen.
type stage struct {
	t          *testing.T
	link       *fakeLink
	chat       *chat
	out, err   bytes.Buffer
	in         *io.PipeWriter
	interrupts chan struct{}
	result     chan error
	cancel     context.CancelFunc
}

func newStage(t *testing.T, ownOnly bool) *stage {
	t.Helper()
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	s := &stage{t: t, link: newFakeLink(), in: w, interrupts: make(chan struct{}), result: make(chan error, 1), cancel: cancel}
	ids := 0
	s.chat = &chat{
		link: s.link, screen: &plain{out: &s.out, err: &s.err}, lines: newPipeLines(ctx, r), interrupts: s.interrupts, ownOnly: ownOnly,
		newID: func() string { ids++; return "m" + string(rune('0'+ids)) },
	}
	t.Cleanup(func() {
		cancel()
		w.Close()
		goleak.VerifyNone(t)
	})
	return s
}

// run opens the session with what is in its history, then converses.
func (s *stage) run() {
	go func() {
		if err := s.chat.open(context.Background()); err != nil {
			s.result <- err
			return
		}
		s.result <- s.chat.converse(context.Background())
	}()
}

func (s *stage) say(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, text+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) wantCall(want string) {
	s.t.Helper()
	if got := <-s.link.calls; got != want {
		s.t.Fatalf("the chat did %q, want %q", got, want)
	}
}

func (s *stage) end() error {
	s.in.Close()
	return <-s.result
}

func TestConverse(t *testing.T) {
	s := newStage(t, true)
	s.run()
	old := s.link.entry(0, &wirepb.UserMessage{MessageId: "x", Text: "before"})
	s.link.entry(old, "an old answer")
	s.link.entry(old, completed())
	s.link.events <- event{caughtUp: true}

	s.say("hello")
	s.wantCall("submit m1 hello")
	turn := s.link.entry(0, &wirepb.UserMessage{MessageId: "m1", Text: "hello"})
	s.link.accept <- accepted{turn: turn}
	s.link.entry(turn, "one ")
	s.link.events <- event{lost: true}
	s.link.entry(turn, "two")
	s.link.entry(turn, completed())

	s.say("again")
	s.wantCall("submit m2 again")
	other := s.link.entry(0, &wirepb.UserMessage{MessageId: "y", Text: "from elsewhere"})
	s.link.entry(other, "not for us")
	turn = s.link.entry(0, &wirepb.UserMessage{MessageId: "m2", Text: "again"})
	s.link.entry(other, completed())
	s.link.entry(turn, "three\n")
	s.link.entry(turn, completed()) // before its acceptance was heard of

	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.out.String(), "one two\nthree\n"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
	if got, want := s.err.String(), "holdfast: connection lost, reconnecting\n"; got != want {
		t.Errorf("stderr %q, want %q", got, want)
	}
}

func TestConverseShowsOthers(t *testing.T) {
	s := newStage(t, false)
	s.run()
	for i := range 5 {
		turn := s.link.entry(0, &wirepb.UserMessage{MessageId: "x", Text: "q"})
		s.link.entry(turn, "answer "+string(rune('0'+i)))
		s.link.entry(turn, completed())
	}
	live := s.link.entry(0, &wirepb.UserMessage{MessageId: "z", Text: "q"})
	s.link.entry(live, "it be")
	s.link.events <- event{caughtUp: true}
	s.link.entry(live, "gan before")
	s.link.entry(live, &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED})
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.out.String(), "answer 3\nanswer 4\nit began before\n"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
	if got, want := s.err.String(), "holdfast: stopped\n"; got != want {
		t.Errorf("stderr %q, want %q", got, want)
	}
}

// asked is a screen that also shows what was said.
type asked struct{ plain }

func (a *asked) Said(text string) { a.Text("> " + text + "\n") }

// TestOthersWaitForTheirTurn: what is written elsewhere in mid-answer is shown when its own answer begins.
func TestOthersWaitForTheirTurn(t *testing.T) {
	s := newStage(t, false)
	s.chat.screen = &asked{plain{out: &s.out, err: &s.err}}
	s.run()
	s.link.events <- event{caughtUp: true}
	s.say("mine")
	s.wantCall("submit m1 mine")
	mine := s.link.entry(0, &wirepb.UserMessage{MessageId: "m1", Text: "mine"})
	s.link.entry(mine, "one ")
	theirs := s.link.entry(0, &wirepb.UserMessage{MessageId: "x", Text: "theirs"})
	s.link.entry(mine, "two")
	s.link.accept <- accepted{turn: mine}
	s.link.entry(mine, completed())
	s.link.entry(theirs, "three")
	s.link.entry(theirs, completed())
	s.link.entry(0, &wirepb.UserMessage{MessageId: "y", Text: "at the prompt"})
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.out.String(), "one two\n> theirs\nthree\n> at the prompt\n"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
}

func TestInterruptStops(t *testing.T) {
	s := newStage(t, true)
	s.run()
	s.link.events <- event{caughtUp: true}
	s.say("hello")
	s.wantCall("submit m1 hello")
	s.interrupts <- struct{}{} // before it is accepted: the stop waits for the turn's id
	turn := s.link.entry(0, &wirepb.UserMessage{MessageId: "m1"})
	s.link.accept <- accepted{turn: turn}
	s.wantCall("stop 1")
	s.link.entry(turn, "part")
	s.link.entry(turn, &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED})
	s.say("go on") // the program lives
	s.wantCall("submit m2 go on")
	turn = s.link.entry(0, &wirepb.UserMessage{MessageId: "m2"})
	s.link.entry(turn, "more")
	s.interrupts <- struct{}{}
	s.wantCall("stop 4")
	s.interrupts <- struct{}{} // the server does not answer: leave it
	if err := <-s.result; !errors.Is(err, errInterrupted) {
		t.Errorf("ended with %v, want errInterrupted", err)
	}
	if got, want := s.out.String(), "part\nmore"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
}

func TestInterruptAtPrompt(t *testing.T) {
	s := newStage(t, false)
	s.run()
	s.link.events <- event{caughtUp: true}
	s.interrupts <- struct{}{}
	s.say("still here")
	s.wantCall("submit m1 still here")
	turn := s.link.entry(0, &wirepb.UserMessage{MessageId: "m1"})
	s.link.entry(turn, completed())
	s.interrupts <- struct{}{} // counts from one again: a message came between
	s.link.events <- event{lost: true}
	select {
	case err := <-s.result:
		t.Fatalf("left with %v at the first Ctrl-C", err)
	default:
	}
	s.interrupts <- struct{}{}
	if err := <-s.result; !errors.Is(err, errInterrupted) {
		t.Errorf("ended with %v, want errInterrupted", err)
	}
	if got := strings.Count(s.err.String(), "Ctrl-C again leaves"); got != 2 {
		t.Errorf("said %d times that Ctrl-C again leaves, want 2: %q", got, s.err.String())
	}
}

func TestFailures(t *testing.T) {
	s := newStage(t, true)
	s.run()
	s.link.events <- event{caughtUp: true}
	s.say("one")
	s.wantCall("submit m1 one")
	s.link.accept <- accepted{err: &proto.Error{Code: proto.CodeTooLarge, Message: "too long", Hint: "write less"}}
	s.say("two")
	s.wantCall("submit m2 two")
	turn := s.link.entry(0, &wirepb.UserMessage{MessageId: "m2"})
	s.link.entry(turn, "part")
	s.link.entry(turn, &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_FAILED, Error: &wirepb.Error{Code: "model_failed", Message: "no \x1b[31mnumbers"}})
	s.say("three")
	s.wantCall("submit m3 three")
	turn = s.link.entry(0, &wirepb.UserMessage{MessageId: "m3"})
	s.link.entry(turn, "fine")
	s.link.entry(turn, completed())
	var refused *proto.Error
	if err := s.end(); !errors.As(err, &refused) || refused.Code != proto.CodeModelFailed {
		t.Errorf("ended with %v, want the failure of the second message", err)
	}
	if got, want := s.out.String(), "part\nfine\n"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
	if got, want := s.err.String(), "holdfast: too_large: too long (write less)\nholdfast: model_failed: no ␛[31mnumbers (ask again)\n"; got != want {
		t.Errorf("stderr %q, want %q", got, want)
	}
}

func TestResetWhileWaiting(t *testing.T) {
	s := newStage(t, true)
	s.run()
	s.link.events <- event{caughtUp: true}
	s.say("one")
	s.wantCall("submit m1 one")
	s.link.events <- event{reset: true}
	var refused *proto.Error
	if err := s.end(); !errors.As(err, &refused) || refused.Code != proto.CodeGone {
		t.Errorf("ended with %v, want gone", err)
	}
}

func TestLinkEnds(t *testing.T) {
	want := &proto.Error{Code: proto.CodeForbidden, Message: "no"}
	for _, when := range []string{"history", "prompt", "answer"} {
		t.Run(when, func(t *testing.T) {
			s := newStage(t, true)
			s.run()
			if when != "history" {
				s.link.events <- event{caughtUp: true}
			}
			if when == "answer" {
				s.say("one")
				s.wantCall("submit m1 one")
			}
			s.link.events <- event{err: want}
			if when == "answer" { // a refusal is said and the next message tried
				_ = s.end()
				if !strings.Contains(s.err.String(), "forbidden: no") {
					t.Errorf("stderr %q", s.err.String())
				}
				return
			}
			if err := <-s.result; !errors.Is(err, want) {
				t.Errorf("ended with %v, want %v", err, want)
			}
		})
	}
}

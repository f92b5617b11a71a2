package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/actors/actorstest"
	"github.com/holdfast-ai/holdfast/actors/session"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	alice   = actorstest.User("default", "alice")
	bob     = actorstest.User("default", "bob")
	mallory = actorstest.User("elsewhere", "mallory")
)

const chat = "default/session/chat"

func newHarness(t testing.TB, models inference.Runner, o session.Options) *actorstest.Harness {
	return actorstest.New(t, actorstest.Options{Models: models, Kinds: kinds(o)})
}

func kinds(o session.Options) func(prometheus.Registerer) []actors.Kind {
	return func(r prometheus.Registerer) []actors.Kind {
		o.Registerer = r
		return []actors.Kind{session.Kind(o)}
	}
}

// pause makes a model wait before a step until the test lets it go on.
type pause struct {
	at      int
	reached chan struct{}
	release chan struct{}
	once    sync.Once
}

func pauseAt(step int) *pause {
	return &pause{at: step, reached: make(chan struct{}), release: make(chan struct{})}
}

func (p *pause) step(ctx context.Context, _ *inference.Request, step int) error {
	if step != p.at {
		return nil
	}
	p.once.Do(func() { close(p.reached) })
	select {
	case <-p.release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// describe tells what a log says, turn after turn, turns being numbered in their order: how they interleave depends on
// timing. How chunks are joined does too, so any number of them is one line. That turns run one after the other is
// checked here.
func describe(t *testing.T, r *actorstest.Reader) []string {
	t.Helper()
	numbers := map[uint64]int{}
	ended := map[int]bool{}
	lines := map[int][]string{}
	for _, e := range r.Entries {
		n, ok := numbers[e.Turn]
		if !ok {
			n = len(numbers) + 1
			numbers[e.Turn] = n
		}
		if e.GetAttempt() != nil || e.GetChunk() != nil {
			for before := 1; before < n; before++ {
				if !ended[before] {
					t.Errorf("turn %d goes on at offset %d although turn %d has not ended", n, e.Offset, before)
				}
			}
		}
		if ended[n] {
			t.Errorf("offset %d comes after the end of turn %d", e.Offset, n)
		}
		ended[n] = e.GetTerminal() != nil
		line := fmt.Sprint(n, " ", actorstest.Describe(e))
		if l := lines[n]; e.GetChunk() == nil || len(l) == 0 || l[len(l)-1] != line {
			lines[n] = append(l, line)
		}
	}
	var all []string
	for n := 1; n <= len(numbers); n++ {
		all = append(all, lines[n]...)
	}
	return all
}

func expect(t *testing.T, r *actorstest.Reader, want ...string) {
	t.Helper()
	if got := describe(t, r); !slices.Equal(got, want) {
		t.Errorf("log is\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestTurnStreamsToItsEnd(t *testing.T) {
	m := &actorstest.Model{Length: 30}
	h := newHarness(t, m, session.Options{})
	r := h.Attach(alice, chat, nil)
	turn := h.Accept(alice, chat, "m1", "hello")
	end := r.UntilTerminal(turn)
	expect(t, r, "1 user m1", "1 attempt 1 from 0", "1 chunk", "1 completed length")
	seed := r.Attempts(turn)[0].Seed
	if got, want := r.Text(turn), actorstest.Answer(seed, turn, 30); got != want {
		t.Errorf("answer is %q, want %q", got, want)
	}
	if u := end.Usage; u.CompletionTokens != 30 || u.PromptTokens != 1 {
		t.Errorf("usage is %v", u)
	}
	h.AwaitMetric("holdfast_session_turns_total", 1)
	if strings.Contains(h.Log.String(), "hello") {
		t.Error("the log of the process holds what a person wrote")
	}
}

func TestHistoryIsGivenToTheModel(t *testing.T) {
	m := &actorstest.Model{Length: 2}
	m.OnStep = func(_ context.Context, r *inference.Request, step int) error {
		if step == 0 && len(r.Messages) > 0 && r.Messages[len(r.Messages)-1].Content == "fail" {
			return errors.New("out of luck")
		}
		return nil
	}
	h := newHarness(t, m, session.Options{})
	r := h.Attach(alice, chat, nil)
	opts := &wirepb.Options{System: "be brief"}
	first := h.Do(alice, actorstest.SubmitFrame(chat, "m1", "one", opts)).GetAccepted().Turn
	r.UntilTerminal(first)
	r.UntilTerminal(h.Accept(alice, chat, "m2", "fail"))
	third := h.Accept(alice, chat, "m3", "three")
	r.UntilTerminal(third)
	plans := m.Plans()
	got := plans[len(plans)-1]
	want := []inference.Message{
		{Role: inference.System, Content: "be brief"},
		{Role: inference.User, Content: "one"},
		{Role: inference.Assistant, Content: r.Text(first)},
		{Role: inference.User, Content: "three"},
	}
	if !slices.Equal(got.Messages, want) {
		t.Errorf("messages are %v, want %v", got.Messages, want)
	}
	if got.CacheScope != chat || got.Tenant != "default/alice" || got.Turn != third {
		t.Errorf("scope %q, tenant %q, turn %d", got.CacheScope, got.Tenant, got.Turn)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	m := &actorstest.Model{Length: 1}
	h := newHarness(t, m, session.Options{HistoryBytes: 1000})
	r := h.Attach(alice, chat, nil)
	for i := range 12 {
		r.UntilTerminal(h.Accept(alice, chat, fmt.Sprint("m", i), strings.Repeat("x", 300)))
	}
	plans := m.Plans()
	if n := len(plans[len(plans)-1].Messages); n != 7 { // three turns of about 306 bytes, and the message itself
		t.Errorf("the model was given %d messages", n)
	}
}

func TestMessageIDs(t *testing.T) {
	p := pauseAt(3)
	m := &actorstest.Model{Length: 5, OnStep: p.step}
	h := newHarness(t, m, session.Options{})
	turn := h.Accept(alice, chat, "m1", "hello")
	submit := func(p proto.Principal, id, text string, o *wirepb.Options) *wirepb.Frame {
		return h.Do(p, actorstest.SubmitFrame(chat, id, text, o))
	}
	if a := submit(alice, "m1", "hello", nil).GetAccepted(); a == nil || a.Turn != turn || !a.Duplicate || a.Outcome != 0 {
		t.Errorf("same again: %v", a)
	}
	for _, f := range []*wirepb.Frame{
		submit(alice, "m1", "hello!", nil),
		submit(alice, "m1", "hello", &wirepb.Options{Model: "other"}),
	} {
		if actorstest.Code(f) != proto.CodeConflict || f.GetError().MessageId != "m1" {
			t.Errorf("same id, other body: %v", f)
		}
	}
	if a := submit(bob, "m1", "hello", nil).GetAccepted(); a == nil || a.Duplicate || a.Turn == turn || a.Position != 1 {
		t.Errorf("another user's id: %v", a)
	}
	close(p.release)
	r := h.Attach(alice, chat, nil)
	r.UntilTerminal(turn)
	h.Crash()
	if a := submit(alice, "m1", "hello", nil).GetAccepted(); a == nil || a.Turn != turn || a.Outcome != wirepb.Outcome_OUTCOME_COMPLETED {
		t.Errorf("same again after a crash: %v", a)
	}
}

func TestRefusals(t *testing.T) {
	h := newHarness(t, &actorstest.Model{}, session.Options{MaxText: 100})
	f32 := func(v float32) *float32 { return &v }
	zero, nan := uint32(0), float32(0)
	nan /= nan
	for _, c := range []struct {
		name string
		p    proto.Principal
		f    *wirepb.Frame
		code proto.Code
	}{
		{"other namespace", mallory, actorstest.SubmitFrame(chat, "m", "x", nil), proto.CodeForbidden},
		{"no principal", proto.Principal{}, actorstest.SubmitFrame(chat, "m", "x", nil), proto.CodeForbidden},
		{"unknown kind", alice, actorstest.SubmitFrame("default/nothing/x", "m", "x", nil), proto.CodeUnknownKind},
		{"two parts", alice, actorstest.SubmitFrame("default/session", "m", "x", nil), proto.CodeInvalidName},
		{"control character in the name", alice, actorstest.SubmitFrame("default/session/a\nb", "m", "x", nil), proto.CodeInvalidName},
		{"long name", alice, actorstest.SubmitFrame("default/session/"+strings.Repeat("n", 129), "m", "x", nil), proto.CodeInvalidName},
		{"not UTF-8 in the name", alice, actorstest.SubmitFrame("default/session/\xff", "m", "x", nil), proto.CodeInvalidName},
		{"no message id", alice, actorstest.SubmitFrame(chat, "", "x", nil), proto.CodeInvalidArgument},
		{"long message id", alice, actorstest.SubmitFrame(chat, strings.Repeat("m", 129), "x", nil), proto.CodeInvalidArgument},
		{"control character in the message id", alice, actorstest.SubmitFrame(chat, "m\x00", "x", nil), proto.CodeInvalidArgument},
		{"empty text", alice, actorstest.SubmitFrame(chat, "m", "", nil), proto.CodeInvalidArgument},
		{"long text", alice, actorstest.SubmitFrame(chat, "m", strings.Repeat("x", 101), nil), proto.CodeTooLarge},
		{"text not UTF-8", alice, actorstest.SubmitFrame(chat, "m", "\xff", nil), proto.CodeInvalidArgument},
		{"hot", alice, actorstest.SubmitFrame(chat, "m", "x", &wirepb.Options{Temperature: f32(5.1)}), proto.CodeInvalidArgument},
		{"not a number", alice, actorstest.SubmitFrame(chat, "m", "x", &wirepb.Options{TopP: &nan}), proto.CodeInvalidArgument},
		{"no tokens", alice, actorstest.SubmitFrame(chat, "m", "x", &wirepb.Options{MaxTokens: &zero}), proto.CodeInvalidArgument},
		{"many stops", alice, actorstest.SubmitFrame(chat, "m", "x", &wirepb.Options{Stop: make([]string, 9)}), proto.CodeInvalidArgument},
		{"empty stop", alice, actorstest.SubmitFrame(chat, "m", "x", &wirepb.Options{Stop: []string{""}}), proto.CodeInvalidArgument},
		{"stop of no such turn", alice, actorstest.StopFrame(chat, 7), proto.CodeNotFound},
		{"stop from elsewhere", mallory, actorstest.StopFrame(chat, 0), proto.CodeForbidden},
		{"a server's frame", alice, &wirepb.Frame{Object: chat, Body: &wirepb.Frame_Pong{}}, proto.CodeInvalidFrame},
	} {
		got := h.Do(c.p, c.f)
		if actorstest.Code(got) != c.code || got.Object != c.f.Object || got.Request != c.f.Request {
			t.Errorf("%s: %v, want code %s", c.name, got, c.code)
		}
	}
	if _, err := h.TryAttach(mallory, chat, nil); err == nil || err.(*proto.Error).Code != proto.CodeForbidden {
		t.Errorf("attach from elsewhere: %v", err)
	}
	r := h.Attach(alice, chat, nil)
	if r.Attached.Watermark != 0 {
		t.Errorf("refusals left something in the log: %v", r.Attached)
	}
}

func TestFailureIsKeptForWhoIsAway(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		code proto.Code
	}{
		{"model", errors.New("secret detail"), proto.CodeModelFailed},
		{"not found", fmt.Errorf("open x: %w", inference.ErrModelNotFound), proto.CodeModelNotFound},
		{"context", inference.ErrContextOverflow, proto.CodeContextOverflow},
		{"queue", inference.ErrOverloaded, proto.CodeOverloaded},
		{"damaged", inference.ErrModelUnavailable, proto.CodeModelUnavailable},
		{"options", inference.ErrInvalidRequest, proto.CodeInvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &actorstest.Model{Length: 40, OnStep: func(_ context.Context, _ *inference.Request, step int) error {
				if step == 20 {
					return c.err
				}
				return nil
			}}
			h := newHarness(t, m, session.Options{})
			turn := h.Accept(alice, chat, "m1", "hello")
			h.AwaitMetric("holdfast_session_turns_total", 1)
			r := h.Attach(alice, chat, nil)
			end := r.UntilTerminal(turn)
			if n := len(r.Tokens(turn)); n != 20 {
				t.Errorf("%d tokens were kept", n)
			}
			if end.Outcome != wirepb.Outcome_OUTCOME_FAILED || end.GetError().GetCode() != string(c.code) || end.GetError().GetHint() == "" {
				t.Errorf("terminal is %v", end)
			}
			if strings.Contains(end.GetError().GetMessage(), "secret") {
				t.Error("what the model said of itself reached the client")
			}
		})
	}
}

func TestPlanFails(t *testing.T) {
	m := &actorstest.Model{OnPlan: func(context.Context, *inference.Request) error { return inference.ErrContextOverflow }}
	h := newHarness(t, m, session.Options{})
	r := h.Attach(alice, chat, nil)
	r.UntilTerminal(h.Accept(alice, chat, "m1", "hello"))
	expect(t, r, "1 user m1", "1 failed context_overflow")
}

func TestRunnerPanics(t *testing.T) {
	m := &actorstest.Model{OnStep: func(_ context.Context, r *inference.Request, step int) error {
		if step == 3 && r.Turn == 1 {
			panic("boom")
		}
		return nil
	}}
	h := newHarness(t, m, session.Options{})
	r := h.Attach(alice, chat, nil)
	r.UntilTerminal(h.Accept(alice, chat, "m1", "hello"))
	r.UntilTerminal(h.Accept(alice, chat, "m2", "again"))
	got := describe(t, r)
	if got[3] != "1 failed model_failed" || !strings.HasSuffix(got[len(got)-1], "completed length") {
		t.Errorf("log is %q", got)
	}
}

func TestNoModels(t *testing.T) {
	h := newHarness(t, nil, session.Options{})
	r := h.Attach(alice, chat, nil)
	r.UntilTerminal(h.Accept(alice, chat, "m1", "hello"))
	expect(t, r, "1 user m1", "1 failed model_unavailable")
}

func TestToolCalls(t *testing.T) {
	h := newHarness(t, toolCaller{}, session.Options{})
	r := h.Attach(alice, chat, nil)
	r.UntilTerminal(h.Accept(alice, chat, "m1", "weather?"))
	expect(t, r, "1 user m1", "1 attempt 1 from 0", "1 chunk", "1 tool weather", "1 chunk", "1 completed tool_calls")
}

type toolCaller struct{}

func (toolCaller) Run(_ context.Context, _ *inference.Request, emit func(inference.Chunk) error) (inference.Usage, error) {
	for _, c := range []inference.Chunk{
		{Text: "let me "}, {Text: "see", Step: 1},
		{ToolCall: &inference.ToolCall{ID: "c1", Name: "weather", Arguments: `{"at":"here"}`}, Step: 2},
		{Text: "\xff", Step: 3},
	} {
		if err := emit(c); err != nil {
			return inference.Usage{}, err
		}
	}
	return inference.Usage{Finish: inference.FinishToolCalls}, nil
}

func TestStopKeepsThePartial(t *testing.T) {
	p := pauseAt(10)
	m := &actorstest.Model{Length: 40, OnStep: p.step}
	h := newHarness(t, m, session.Options{})
	turn := h.Accept(alice, chat, "m1", "hello")
	r := h.Attach(alice, chat, nil)
	r.UntilTokens(turn, 10)
	<-p.reached
	r.Close() // a lost connection is not a stop
	if m.Steps() != 10 {
		t.Errorf("the model has made %d steps", m.Steps())
	}
	if s := h.Do(bob, actorstest.StopFrame(chat, turn)).GetStopping(); s == nil || s.Turn != turn || s.Ended {
		t.Errorf("stop: %v", s)
	}
	r = h.Attach(alice, chat, nil)
	end := r.UntilTerminal(turn)
	if end.Outcome != wirepb.Outcome_OUTCOME_STOPPED || end.Error != nil || len(r.Tokens(turn)) != 10 || end.Usage.CompletionTokens != 10 {
		t.Errorf("%d tokens, terminal %v", len(r.Tokens(turn)), end)
	}
	if m.Steps() != 10 {
		t.Errorf("the model went on to %d steps", m.Steps())
	}
	if s := h.Do(alice, actorstest.StopFrame(chat, turn)).GetStopping(); s == nil || !s.Ended {
		t.Errorf("stop of an ended turn: %v", s)
	}
	if s := h.Do(alice, actorstest.StopFrame(chat, 0)).GetStopping(); s == nil || !s.Ended || s.Turn != turn {
		t.Errorf("stop of no live turn: %v", s)
	}
	// The partial is part of the conversation.
	close(p.release)
	next := h.Accept(alice, chat, "m2", "and?")
	r.UntilTerminal(next)
	plans := m.Plans()
	if msgs := plans[len(plans)-1].Messages; len(msgs) != 3 || msgs[1].Content != r.Text(turn) {
		t.Errorf("messages: %v", msgs)
	}
}

func TestStopWhileWaitingAndPlanning(t *testing.T) {
	planning := make(chan struct{}, 1)
	m := &actorstest.Model{OnPlan: func(ctx context.Context, r *inference.Request) error {
		if r.Turn != 1 {
			return nil
		}
		planning <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	h := newHarness(t, m, session.Options{})
	h.Accept(alice, chat, "m1", "one")
	<-planning
	second := h.Accept(bob, chat, "m2", "two")
	third := h.Accept(alice, chat, "m3", "three")
	for _, turn := range []uint64{second, 0} { // 0 is the live one, which is the first
		if s := h.Do(alice, actorstest.StopFrame(chat, turn)).GetStopping(); s == nil || s.Ended {
			t.Errorf("stop of turn %d: %v", turn, s)
		}
	}
	r := h.Attach(alice, chat, nil)
	r.UntilTerminal(third)
	expect(t, r, "1 user m1", "1 stopped ", "2 user m2", "2 stopped ", "3 user m3",
		"3 attempt 1 from 0", "3 chunk", "3 completed length")
	h.AwaitMetric("holdfast_actors_effects_running", 0)
}

func TestOverlappingSubmits(t *testing.T) {
	p := pauseAt(0)
	m := &actorstest.Model{Length: 3, OnStep: p.step}
	h := newHarness(t, m, session.Options{MaxQueue: 3})
	answers := make(map[string]<-chan *wirepb.Frame)
	for i, id := range []string{"a", "b", "c", "b", "d"} {
		who := []proto.Principal{alice, alice, bob, alice, bob}[i]
		answers[fmt.Sprint(i, id)] = h.Send(who, actorstest.SubmitFrame(chat, id, "text of "+id, nil))
	}
	var accepted []*wirepb.Accepted
	for _, k := range []string{"0a", "1b", "2c", "3b", "4d"} {
		a := h.Await(answers[k]).GetAccepted()
		if a == nil {
			t.Fatalf("%s was refused", k)
		}
		accepted = append(accepted, a)
	}
	if accepted[3].Turn != accepted[1].Turn || !accepted[3].Duplicate {
		t.Errorf("repeated id: %v", accepted[3])
	}
	if f := h.Do(alice, actorstest.SubmitFrame(chat, "e", "one too many", nil)); actorstest.Code(f) != proto.CodeOverloaded {
		t.Errorf("a full queue took %v", f)
	}
	close(p.release)
	r := h.Attach(alice, chat, nil)
	r.UntilTerminal(accepted[4].Turn)
	expect(t, r,
		"1 user a", "1 attempt 1 from 0", "1 chunk", "1 completed length",
		"2 user b", "2 attempt 1 from 0", "2 chunk", "2 completed length",
		"3 user c", "3 attempt 1 from 0", "3 chunk", "3 completed length",
		"4 user d", "4 attempt 1 from 0", "4 chunk", "4 completed length")
	parent := uint64(0)
	for _, e := range r.Entries {
		if m := e.GetUserMessage(); m != nil {
			if m.Parent != parent {
				t.Errorf("turn %d continues %d and not %d", e.Turn, m.Parent, parent)
			}
			parent = e.Turn
		}
	}
}

func TestStatuses(t *testing.T) {
	reported := make(chan struct{})
	m := &actorstest.Model{OnPlan: func(_ context.Context, r *inference.Request) error {
		r.Progress(inference.Progress{Phase: inference.Loading, Done: 5, Total: 10})
		<-reported
		return nil
	}}
	h := newHarness(t, m, session.Options{})
	r := h.Attach(alice, chat, nil)
	turn := h.Accept(alice, chat, "m1", "one")
	st := r.UntilStatus("loading", func(s *wirepb.Status) bool { return s.Phase == wirepb.Phase_PHASE_LOADING })
	if st.Turn != turn || st.Done != 5 || st.Total != 10 {
		t.Errorf("status %v", st)
	}
	second := h.Accept(alice, chat, "m2", "two")
	st = r.UntilStatus("waiting", func(s *wirepb.Status) bool { return s.Phase == wirepb.Phase_PHASE_WAITING })
	if st.Turn != second || st.Position != 1 {
		t.Errorf("status %v", st)
	}
	if live := h.Attach(bob, chat, nil).Attached.LiveTurn; live != turn {
		t.Errorf("the live turn is %d", live)
	}
	close(reported)
	r.UntilStatus("idle", func(s *wirepb.Status) bool { return s.Phase == wirepb.Phase_PHASE_IDLE })
	if live := h.Attach(bob, chat, nil).Attached.LiveTurn; live != 0 {
		t.Errorf("the live turn is %d after all have ended", live)
	}
}

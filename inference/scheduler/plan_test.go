package scheduler_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/inferencetest"
	"github.com/holdfast-ai/holdfast/inference/scheduler"
)

// conversation makes messages of "s:…", "u:…" and "a:…".
func conversation(lines ...string) (msgs []inference.Message) {
	roles := map[byte]inference.Role{'s': inference.System, 'u': inference.User, 'a': inference.Assistant}
	for _, l := range lines {
		msgs = append(msgs, inference.Message{Role: roles[l[0]], Content: l[2:]})
	}
	return msgs
}

func rendered(msgs []inference.Message) []uint32 {
	prompt, _ := inferencetest.Template{}.Render(nil, inferencetest.Tokenizer{}, msgs)
	return prompt
}

func TestPlan(t *testing.T) {
	// A message is its length and 3 more tokens, the question for an answer 2.
	const positions, room = 100, 20
	s, _ := open(t, inferencetest.StepperOptions{Context: positions}, scheduler.Options{MaxTokens: 30, AnswerRoom: room, Digest: "sha256:1"})
	long := strings.Repeat("x", 30)
	for _, c := range []struct {
		name      string
		msgs      []inference.Message
		maxTokens int
		kept      []inference.Message
		wantMax   int
		err       error
	}{
		{"default length", conversation("u:hi"), 0, conversation("u:hi"), 30, nil},
		{"its own length", conversation("u:hi"), 7, conversation("u:hi"), 7, nil},
		{"length beyond the context", conversation("u:hi"), 5000, conversation("u:hi"), positions - 7, nil},
		{"all fit", conversation("s:be kind", "u:"+long, "a:ok", "u:hi"), 0, conversation("s:be kind", "u:"+long, "a:ok", "u:hi"), 30, nil},
		{"the oldest turn goes, with its answer", conversation("u:"+long, "a:"+long, "u:"+long, "a:ok", "u:hi"), 0, conversation("u:"+long, "a:ok", "u:hi"), 30, nil},
		{"system messages stay", conversation("s:be kind", "u:"+long, "a:"+long, "s:be brief", "u:"+long), 0, conversation("s:be kind", "s:be brief", "u:"+long), 30, nil},
		{"a short answer needs less room", conversation("u:"+long, "a:"+long, "u:hi there, you"), 5, conversation("u:"+long, "a:"+long, "u:hi there, you"), 5, nil},
		{"only the last message fits", conversation("u:"+long, "a:"+long, "u:"+long+long), 0, conversation("u:" + long + long), 30, nil},
		{"the last message leaves little", conversation("u:a", "u:"+strings.Repeat("y", 77)), 0, conversation("u:" + strings.Repeat("y", 77)), 18, nil},
		{"the last message is too long", conversation("u:" + strings.Repeat("y", 80)), 0, nil, 0, inference.ErrContextOverflow},
		{"system messages are too long", conversation("s:"+strings.Repeat("y", 70), "u:"+long), 0, nil, 0, inference.ErrContextOverflow},
		{"not worth tokenizing", conversation("u:" + strings.Repeat("y", 10_000_000)), 0, nil, 0, inference.ErrContextOverflow},
		{"no message of a user", conversation("s:greet them"), 0, conversation("s:greet them"), 30, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := s.Plan(t.Context(), &inference.Request{Messages: c.msgs, Sampling: inference.Sampling{MaxTokens: c.maxTokens, TopK: 3, Stop: []string{"x"}}})
			if c.err != nil {
				if !errors.Is(err, c.err) {
					t.Fatalf("%v, want %v", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := &inference.Plan{
				Model: "fake", Digest: "sha256:1", Template: "fake/1", Prompt: rendered(c.kept), DroppedMessages: len(c.msgs) - len(c.kept),
				Sampling: inference.Sampling{MaxTokens: c.wantMax, TopK: 3, Stop: []string{"x"}},
			}
			if !reflect.DeepEqual(p, want) {
				t.Fatalf("%+v\nwant %+v", p, want)
			}
		})
	}
}

// TestPlanKeepsAsMuchAsFits compares with trying every beginning.
func TestPlanKeepsAsMuchAsFits(t *testing.T) {
	s, _ := open(t, inferencetest.StepperOptions{Context: 120}, scheduler.Options{MaxTokens: 30, AnswerRoom: 20})
	rapid.Check(t, func(t *rapid.T) {
		var msgs []inference.Message
		for range rapid.IntRange(0, 12).Draw(t, "messages") {
			msgs = append(msgs, inference.Message{
				Role:    rapid.SampledFrom([]inference.Role{inference.System, inference.User, inference.User, inference.Assistant, inference.Assistant}).Draw(t, "role"),
				Content: strings.Repeat("z", rapid.SampledFrom([]int{0, 1, 10, 30}).Draw(t, "length")),
			})
		}
		msgs = append(msgs, inference.Message{Role: inference.User, Content: strings.Repeat("z", rapid.IntRange(0, 50).Draw(t, "last"))})
		var want []inference.Message
		for i := range msgs {
			if i > 0 && msgs[i].Role != inference.User {
				continue
			}
			want = nil
			for j, m := range msgs {
				if j >= i || m.Role == inference.System {
					want = append(want, m)
				}
			}
			if len(rendered(want)) <= 100 {
				break
			}
		}
		p, err := s.Plan(context.Background(), &inference.Request{Messages: msgs})
		if over := len(rendered(want)) > 120-16; over != errors.Is(err, inference.ErrContextOverflow) {
			t.Fatalf("%d tokens at least: %v", len(rendered(want)), err)
		}
		if err == nil && !reflect.DeepEqual(p.Prompt, rendered(want)) {
			t.Fatalf("%d tokens kept, want %d", len(p.Prompt), len(rendered(want)))
		}
	})
}

func TestPlansFromElsewhere(t *testing.T) {
	s, _ := open(t, inferencetest.StepperOptions{Context: 50, EndBias: never}, scheduler.Options{Digest: "sha256:1"})
	good := inference.Plan{Digest: "sha256:1", Prompt: []uint32{'a', 'b'}, Sampling: inference.Sampling{MaxTokens: 3}}
	for _, c := range []struct {
		name   string
		change func(p *inference.Plan, r *inference.Request)
		want   error
	}{
		{"good", func(*inference.Plan, *inference.Request) {}, nil},
		{"longer than the context allows", func(p *inference.Plan, _ *inference.Request) { p.Sampling.MaxTokens = 1 << 30 }, nil},
		{"another model", func(p *inference.Plan, _ *inference.Request) { p.Digest = "sha256:2" }, inference.ErrModelUnavailable},
		{"no prompt", func(p *inference.Plan, _ *inference.Request) { p.Prompt = nil }, inference.ErrInvalidRequest},
		{"prompt as long as the context", func(p *inference.Plan, _ *inference.Request) { p.Prompt = make([]uint32, 50) }, inference.ErrContextOverflow},
		{"unknown token", func(p *inference.Plan, _ *inference.Request) { p.Prompt = []uint32{1 << 30} }, inference.ErrInvalidRequest},
		{"unknown resumed token", func(_ *inference.Plan, r *inference.Request) { r.Resume = []uint32{1 << 31} }, inference.ErrInvalidRequest},
		{"bad sampling", func(p *inference.Plan, _ *inference.Request) { p.Sampling.TopP = 2 }, inference.ErrInvalidRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, r := good, inference.Request{}
			r.Plan = &p
			c.change(&p, &r)
			_, err := s.Run(t.Context(), &r, func(inference.Chunk) error { return nil })
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
		})
	}
}

// A run that ends at the last position of the context has used every one.
func TestAnswerEndsWithTheContext(t *testing.T) {
	s, _ := open(t, inferencetest.StepperOptions{Context: 50, EndBias: never}, scheduler.Options{})
	p := inference.Plan{Prompt: []uint32{'a', 'b'}}
	x := start(t, s, &inference.Request{Plan: &p}, nil)
	if err := x.wait(); err != nil || len(x.tokens) != 48 || x.usage.Finish != inference.FinishLength {
		t.Fatalf("%d tokens, finish %q, %v; want 48 and length", len(x.tokens), x.usage.Finish, err)
	}
}

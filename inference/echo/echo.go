package echo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/scheduler"
	"github.com/holdfast-ai/holdfast/internal/clock"
)

// Options of a Model. The zero value works.
type Options struct {
	Name    string // "echo"
	Digest  string // of the manifest, in plans; that of no files
	Default Script // for messages that say nothing
	NoPlan  bool   // cannot continue, like a remote model
	Clock   clock.Clock
	Crash   func() // what crash= does: ends the process with status 70
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = "echo"
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Digest == "" {
		o.Digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	}
	if o.Default.Tokens == 0 && o.Default.Text == "" {
		o.Default.Tokens = 3
	}
	o.Default = o.Default.complete()
	if o.Crash == nil {
		o.Crash = func() { os.Exit(70) }
	}
	return o
}

// Model runs scripts. It is safe for concurrent use; every run works on its caller's goroutine.
type Model struct {
	o      Options
	closed context.Context // done once closed
	close  context.CancelFunc
}

var (
	_ inference.Planner = (*Model)(nil)
	_ inference.Model   = (*Model)(nil)
)

// New returns a Model.
func New(o Options) *Model {
	m := &Model{o: o.withDefaults()}
	m.closed, m.close = context.WithCancel(context.Background())
	return m
}

type runtime struct{ o Options }

// NewRuntime returns a Runtime named "echo" whose models have no files.
func NewRuntime(o Options) inference.Runtime { return runtime{o} }

func (r runtime) Name() string { return "echo" }

func (r runtime) Load(ctx context.Context, m *inference.Manifest, _, _ string, progress func(done, total int64)) (inference.Model, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	o := r.o
	o.Name, o.Digest = m.Name, m.Digest()
	if progress != nil {
		progress(0, 0)
	}
	return New(o), nil
}

// MemoryBytes is nothing worth counting.
func (m *Model) MemoryBytes() int64 { return 0 }

// Close fails the running with ErrClosed. There is no step to wait for.
func (m *Model) Close() error {
	m.close()
	return nil
}

// Plan pins the script: the prompt's tokens are the bytes of the user's last message. With Options.NoPlan it
// returns nil.
func (m *Model) Plan(ctx context.Context, r *inference.Request) (*inference.Plan, error) {
	if err := m.open(ctx); err != nil {
		return nil, err
	}
	p, _, err := m.plan(r)
	if m.o.NoPlan {
		return nil, err
	}
	return p, err
}

// open returns why the model cannot work, or nil.
func (m *Model) open(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if m.closed.Err() != nil {
		return fmt.Errorf("echo: model %q: %w", m.o.Name, inference.ErrClosed)
	}
	return nil
}

func (m *Model) plan(r *inference.Request) (*inference.Plan, Script, error) {
	if err := validSampling(&r.Sampling); err != nil {
		return nil, Script{}, err
	}
	message := ""
	for _, msg := range r.Messages {
		switch msg.Role {
		case inference.User:
			message = msg.Content
		case inference.System, inference.Assistant:
		default:
			return nil, Script{}, fmt.Errorf("echo: %w: role %q", inference.ErrInvalidRequest, msg.Role)
		}
		if !utf8.ValidString(msg.Content) {
			return nil, Script{}, fmt.Errorf("echo: %w: a message is not valid UTF-8", inference.ErrInvalidRequest)
		}
	}
	if message == "" {
		return nil, Script{}, fmt.Errorf("echo: %w: the user says nothing", inference.ErrInvalidRequest)
	}
	script, err := parse(message, m.o.Default)
	if err != nil {
		return nil, Script{}, err
	}
	p := &inference.Plan{Model: m.o.Name, Digest: m.o.Digest, Template: "echo/1", Sampling: r.Sampling}
	p.Sampling.Stop = append([]string(nil), r.Sampling.Stop...)
	if p.Sampling.MaxTokens == 0 {
		p.Sampling.MaxTokens = maxTokens + 1
	}
	for _, b := range []byte(message) {
		p.Prompt = append(p.Prompt, uint32(b))
	}
	return p, script, nil
}

// planned returns what plan returned when it made p.
func (m *Model) planned(p *inference.Plan) (*inference.Plan, Script, error) {
	var message strings.Builder
	for _, b := range p.Prompt {
		if b > 0xff {
			return nil, Script{}, fmt.Errorf("echo: %w: the plan is not of this model: its prompt has token %d", inference.ErrInvalidRequest, b)
		}
		message.WriteByte(byte(b))
	}
	if p.Digest != m.o.Digest && p.Digest != "" {
		return nil, Script{}, fmt.Errorf("echo: %w: the plan is for the model with digest %q", inference.ErrModelUnavailable, p.Digest)
	}
	return m.plan(&inference.Request{
		Messages: []inference.Message{{Role: inference.User, Content: message.String()}}, Sampling: p.Sampling})
}

func validSampling(p *inference.Sampling) error {
	ok := p.Temperature >= 0 && p.Temperature <= 5 && p.TopP >= 0 && p.TopP <= 1 && p.TopK >= 0 && p.MaxTokens >= 0 && len(p.Stop) <= 8
	for _, stop := range p.Stop {
		ok = ok && len(stop) > 0 && len(stop) <= 256
	}
	if !ok {
		return fmt.Errorf("echo: %w: sampling %+v is out of range", inference.ErrInvalidRequest, *p)
	}
	return nil
}

// Run follows the script.
func (m *Model) Run(ctx context.Context, r *inference.Request, emit func(inference.Chunk) error) (inference.Usage, error) {
	usage := inference.Usage{Model: m.o.Name}
	if err := m.open(ctx); err != nil {
		return usage, err
	}
	var (
		p      *inference.Plan
		script Script
		err    error
	)
	switch {
	case m.o.NoPlan && (r.Plan != nil || len(r.Resume) > 0):
		err = fmt.Errorf("echo: %w: this model cannot continue an answer", inference.ErrInvalidRequest)
	case r.Plan != nil:
		p, script, err = m.planned(r.Plan)
	default:
		p, script, err = m.plan(r)
	}
	if err != nil {
		return usage, err
	}
	x := &answer{m: m, script: &script, sampling: &p.Sampling, turn: r.Turn, step: len(r.Resume), emit: emit, begin: m.o.Clock.Now()}
	for i, t := range r.Resume {
		if int(t) != i || i >= x.tokens() {
			return usage, fmt.Errorf("echo: %w: token %d of the resumed answer is %d, which is not of this script", inference.ErrInvalidRequest, i, t)
		}
	}
	x.text = scheduler.NewTextStream(words{x}, p.Sampling.Stop, r.Resume)
	usage.PromptTokens = len(p.Prompt)
	usage.Finish, err = x.run(ctx, r.Progress)
	usage.CompletionTokens = x.step - len(r.Resume)
	usage.CompletionTime = m.o.Clock.Now().Sub(x.begin)
	return usage, err
}

// answer is one run of a script.
type answer struct {
	m        *Model
	script   *Script
	sampling *inference.Sampling
	turn     uint64
	step     int // of the next token
	text     *scheduler.TextStream
	emit     func(inference.Chunk) error
	begin    time.Time
}

// tokens is the length of the whole answer: a tool call counts as a token without text.
func (x *answer) tokens() int {
	if x.script.Tool != "" {
		return x.script.Tokens + 1
	}
	return x.script.Tokens
}

func (x *answer) run(ctx context.Context, progress func(inference.Progress)) (inference.Finish, error) {
	if err := x.wait(ctx, progress); err != nil {
		return "", err
	}
	// Tokens are due at fixed times, so that their pace does not drift with the time that emit takes.
	first, due := x.step, x.m.o.Clock.Now()
	for !x.text.Stopped() {
		if x.step >= x.tokens() || x.step >= x.sampling.MaxTokens {
			return x.end()
		}
		if x.step > first {
			due = due.Add(x.script.Gap)
		}
		if err := x.sleep(ctx, due.Sub(x.m.o.Clock.Now())); err != nil {
			return "", err
		}
		if err := x.fault(ctx); err != nil {
			return "", err
		}
		if err := x.next(); err != nil {
			return "", err
		}
	}
	return inference.FinishStop, nil
}

// next makes the next token.
func (x *answer) next() error {
	token := x.step
	x.step++
	if token == x.script.Tokens {
		return x.call(uint32(token))
	}
	if c, ok := x.text.Push(uint32(token)); ok {
		return x.send(c)
	}
	return nil
}

// end flushes what a stop string might have begun in and says why the answer ends here.
func (x *answer) end() (inference.Finish, error) {
	if c, ok := x.text.Finish(); ok {
		if err := x.send(c); err != nil {
			return "", err
		}
	}
	switch {
	case x.step < x.tokens():
		return inference.FinishLength, nil
	case x.script.Tool != "":
		return inference.FinishToolCalls, nil
	}
	return inference.FinishStop, nil
}

// call asks for the script's tool, after what is left of the text.
func (x *answer) call(token uint32) error {
	if c, ok := x.text.Finish(); ok {
		if err := x.send(c); err != nil {
			return err
		}
	}
	x.text.Push(token) // a token without text, so it stays there
	c, _ := x.text.Finish()
	c.ToolCall = &inference.ToolCall{
		ID: fmt.Sprintf("call-%d-%d", x.turn, token), Name: x.script.Tool, Arguments: x.script.Arguments}
	return x.send(c)
}

func (x *answer) send(c inference.Chunk) error {
	if x.m.o.NoPlan {
		c.Tokens = nil
	}
	return x.emit(c)
}

// wait shows the positions of a queue and lets the time before the first token pass.
func (x *answer) wait(ctx context.Context, progress func(inference.Progress)) error {
	if progress == nil {
		progress = func(inference.Progress) {}
	}
	for p := x.script.Queue; p > 0; p-- {
		progress(inference.Progress{Phase: inference.Queued, Position: p, Waiting: x.script.Queue})
		if err := x.sleep(ctx, x.script.Gap); err != nil {
			return err
		}
	}
	if err := x.sleep(ctx, x.script.First); err != nil {
		return err
	}
	progress(inference.Progress{Phase: inference.Running})
	return nil
}

// fault does what the script says instead of the next token, if anything.
func (x *answer) fault(ctx context.Context) error {
	switch x.step + 1 {
	case x.script.FailAt:
		return x.script.Err
	case x.script.CrashAt:
		x.m.o.Crash()
		return errors.New("echo: the script says crash")
	case x.script.StallAt:
		return x.await(ctx, nil)
	}
	return nil
}

// sleep lets d pass, if it is more than nothing, unless the context or the model ends before.
func (x *answer) sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return x.m.open(ctx)
	}
	over := make(chan struct{})
	defer x.m.o.Clock.AfterFunc(d, func() { close(over) }).Stop()
	return x.await(ctx, over)
}

// await returns nil once over is closed, which a nil channel never is.
func (x *answer) await(ctx context.Context, over <-chan struct{}) error {
	select {
	case <-over:
	case <-ctx.Done():
	case <-x.m.closed.Done():
	}
	return x.m.open(ctx)
}

// words is the tokenizer of one answer: token i is the script's word i.
type words struct{ x *answer }

func (w words) Encode(dst []uint32, _ string) []uint32 { return dst }
func (w words) Bytes(token uint32) []byte {
	if int(token) >= w.x.script.Tokens {
		return nil
	}
	return []byte(w.x.script.token(int(token)))
}
func (w words) IsEnd(uint32) bool { return false }
func (w words) Vocabulary() int   { return w.x.script.Tokens }

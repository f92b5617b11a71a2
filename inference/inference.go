package inference

import (
	"context"
	"errors"
	"time"
)

// Sentinel errors, to be wrapped with what was tried and what to do.
var (
	ErrModelNotFound    = errors.New("model not found")
	ErrModelUnavailable = errors.New("model unavailable") // missing, damaged or unverified files; does not fit
	ErrContextOverflow  = errors.New("prompt does not fit the model's context")
	ErrInvalidRequest   = errors.New("invalid request")
	ErrOverloaded       = errors.New("model queue is full")
	ErrClosed           = errors.New("model is closed")
)

// Role says who wrote a Message.
type Role string

// Roles of a conversation.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
)

// Message is one piece of a conversation. Content is text: control tokens in it are never interpreted.
type Message struct {
	Role    Role
	Content string
}

// Sampling says how to choose tokens. The zero value is greedy with the model's default length.
type Sampling struct {
	Temperature float32  `json:"temperature,omitempty"` // 0 is greedy; 0 to 5
	TopP        float32  `json:"top_p,omitempty"`       // 0 or 1: off; else the smallest set of tokens with at least this probability
	TopK        int      `json:"top_k,omitempty"`       // 0: off
	Seed        uint64   `json:"seed,omitempty"`        // of the counter generator, keyed by (Seed, Turn, step)
	MaxTokens   int      `json:"max_tokens,omitempty"`  // 0: the model's default
	Stop        []string `json:"stop,omitempty"`        // the answer ends before the first of these; at most 8, each 1 to 256 bytes
}

// Fields names fields of Sampling.
type Fields uint8

// Fields whose zero value asks for something.
const (
	Temperature Fields = 1 << iota
	TopP
	TopK
)

// Request asks for one generation.
type Request struct {
	Model    string
	Messages []Message
	Sampling Sampling
	// Unset are the fields of Sampling about which the request says nothing: they take the model's defaults.
	Unset Fields

	// Tenant is the unit of fairness. CacheScope bounds the sharing of computed prefixes: only requests with
	// an equal, non-empty CacheScope may share (invariant 7).
	Tenant     string
	CacheScope string
	Turn       uint64 // keys the random numbers together with Sampling.Seed

	// Plan, from Planner, fixes model, prompt and sampling; Messages and Sampling are then ignored.
	Plan *Plan
	// Resume holds the tokens of this answer that are already durable. Emitted chunks start after them.
	Resume []uint32

	// Progress, if set, hears of waiting, loading and prefill. It must not block; latest wins.
	Progress func(Progress)
}

// Plan is what must be pinned before a generation starts so that it can be continued exactly after a crash.
type Plan struct {
	Model           string
	Digest          string // of the model's manifest: "sha256:…"
	Template        string // name and version of the chat template
	Prompt          []uint32
	Sampling        Sampling // with every default filled in
	DroppedMessages int      // oldest messages that did not fit the context
}

// Phase is where a waiting generation stands.
type Phase int

// Phases before the first chunk.
const (
	Queued Phase = iota + 1
	Loading
	Prefill
	Running
)

// Progress is what a waiting reader may be shown.
type Progress struct {
	Phase    Phase
	Position int // in the model's queue, from 1; with Queued
	Waiting  int // length of that queue; with Queued
	Done     int // of Total: prompt tokens with Prefill, bytes with Loading
	Total    int
}

// Chunk is a piece of an answer. Text is whole UTF-8 characters and is the text of exactly Tokens, except that the last
// chunk of an answer ended by a stop string lacks the text from that string on. Ownership passes to the receiver.
type Chunk struct {
	Text     string
	Tokens   []uint32 // empty for runners without token ids
	Step     int      // index of the first token, or of the chunk, in the whole answer
	ToolCall *ToolCall
}

// ToolCall is a call that a model asks for.
type ToolCall struct {
	ID        string
	Name      string
	Arguments string // JSON
}

// Finish is why an answer ended by itself.
type Finish string

// Reasons to finish.
const (
	FinishStop      Finish = "stop"   // end token or stop string
	FinishLength    Finish = "length" // MaxTokens or the context
	FinishToolCalls Finish = "tool_calls"
)

// Usage is what a generation cost. With an error it counts what was done before it.
type Usage struct {
	Model              string
	PromptTokens       int
	CachedPromptTokens int // of PromptTokens: taken from a cache
	CompletionTokens   int // without Resume
	PromptTime         time.Duration
	CompletionTime     time.Duration
	Finish             Finish
}

// Runner runs generations. Implementations are safe for concurrent use.
type Runner interface {
	// Run calls emit, on the caller's goroutine, for each chunk in order, until the answer ends, ctx is done or
	// emit returns an error. A slow emit delays only this run. When ctx is done Run returns its cause within
	// one step of the model; what was emitted stands. Errors wrap the sentinels above; any other error is the
	// model's.
	Run(ctx context.Context, r *Request, emit func(Chunk) error) (Usage, error)
}

// Planner is implemented by runners that can continue an answer exactly: running with the same Plan and with Resume
// holding the first n tokens of an answer emits the rest of the very same answer.
type Planner interface {
	Runner
	// Plan renders and fixes r without generating. It may load the model. A nil Plan and nil error mean that the
	// model behind r.Model cannot continue.
	Plan(ctx context.Context, r *Request) (*Plan, error)
}

// Row is one token of one slot in a step.
type Row struct {
	Token    uint32
	Slot     uint32 // 0 to Slots()-1
	Position uint32 // 0 to Context()-1; rows of a slot in one step have rising positions
	Logits   bool   // whether the logits after this token are wanted
}

// Stepper is a loaded model that computes batches: prefill is many rows of one slot, batched decode one row of many
// slots. A slot's key-value cache at a position is overwritten by a later row at that position. Results for a row do not
// depend on the other slots' rows in the batch. Not safe for concurrent use.
type Stepper interface {
	Slots() int
	MaxRows() int    // rows a step
	MaxLogits() int  // rows a step with Logits set
	Context() int    // positions a slot
	Vocabulary() int // length of a logits slice
	// Step computes rows and returns the logits of those that want them, in row order. The slices are valid until
	// the next call. Once ctx is done it may return early with its cause; positions that the step was to write are
	// then undefined.
	Step(ctx context.Context, rows []Row) ([][]float32, error)
	Close() error
}

// Tokenizer turns text into token ids and back.
type Tokenizer interface {
	// Encode appends the tokens of text, in which no control token is recognised.
	Encode(dst []uint32, text string) []uint32
	// Bytes returns the bytes that a token stands for; control tokens stand for none. The slice is shared.
	Bytes(token uint32) []byte
	// IsEnd reports whether token ends an answer.
	IsEnd(token uint32) bool
	Vocabulary() int
}

// Template renders a conversation as tokens that ask for the assistant's next message.
type Template interface {
	// Name is the family and version, part of every Plan.
	Name() string
	// Render appends the tokens of msgs, control tokens included, to dst.
	Render(dst []uint32, t Tokenizer, msgs []Message) ([]uint32, error)
}

package client

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Options of Dial. The zero value works.
type Options struct {
	// Name is the client's name and version, for the server's logs.
	Name string
	// Token is asked for a bearer token before each connection. Nil: none.
	Token func(ctx context.Context) (string, error)
	// Header is sent with each handshake. It is not changed.
	Header http.Header
	// RetryFirst makes Dial go on trying, until its context ends, when the server cannot be reached.
	RetryFirst bool

	MaxBuffered      int // entries an attachment holds for Next; default 1,024
	MaxBufferedBytes int // of those entries; default 1 MiB

	ConnectTimeout time.Duration // until Welcome; default 10 s
	WriteTimeout   time.Duration // default 10 s
	RetryBase      time.Duration // default 250 ms; doubles with each failure
	RetryCap       time.Duration // default 8 s

	// DialContext makes network connections; nil: net.Dialer's.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	Clock       clock.Clock
	Logger      *slog.Logger   // default: none
	Random      func() float64 // in [0, 1), safe for concurrent use
}

// stableAfter is how long a connection must have lasted for the next failure to count as the first.
const stableAfter = 5 * time.Second

func (o Options) withDefaults() Options {
	setDefault(&o.Name, "holdfast-go/1")
	setDefault(&o.MaxBuffered, 1024)
	setDefault(&o.MaxBufferedBytes, 1<<20)
	setDefault(&o.ConnectTimeout, 10*time.Second)
	setDefault(&o.WriteTimeout, 10*time.Second)
	setDefault(&o.RetryBase, 250*time.Millisecond)
	setDefault(&o.RetryCap, 8*time.Second)
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// AttachOptions say where an attachment begins.
type AttachOptions struct {
	// After is where the reader stands; nil with Tail 0 reads all that is held.
	After *wirepb.Cursor
	// Tail asks for the newest entries only, instead of After.
	Tail uint64
}

// Event is one thing that an object said, or that happened to the attachment: exactly one field is set.
type Event struct {
	// Entry is durable. Raw is its bytes as they came, equal on every connection and for every reader.
	Entry *wirepb.Entry
	Raw   []byte
	// Status is ephemeral: the latest, given when no entry is waiting.
	Status *wirepb.Status
	// Attached says where entries go on, after each connection.
	Attached *wirepb.Attached
	// CaughtUp: every entry that was there at the attachment has been given.
	CaughtUp bool
	// Lost says why the connection broke. Another is being made.
	Lost error
	// Reset: what was given so far is of another history, or is not followed by what comes next.
	Reset *Reset
}

// Reset says what has become of an object's history.
type Reset struct {
	// FirstHeld is the lowest offset that is held; 0 if the server did not say.
	FirstHeld uint64
	// Present is the present generation and incarnation; nil if the server did not say.
	Present *wirepb.Cursor
}

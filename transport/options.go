package transport

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-ai/holdfast/internal/clock"
)

// Options of NewServer. Only Dispatcher must be set; the zero value of everything else is a sound default.
type Options struct {
	Dispatcher Dispatcher
	// Authenticator says who asks. Nil: Local.
	Authenticator Authenticator
	// Web serves what is not an endpoint of this package, such as a page at "/".
	Web http.Handler
	// Ready is asked by /readyz.
	Ready []Check

	// AllowedOrigins are origins ("https://chat.example.org") beside the server's own whose pages may connect.
	// "*" allows all: only where credentials never come by themselves, as cookies and loopback addresses do.
	AllowedOrigins []string
	// AllowedHosts are Host names beside loopback ones that a loopback listener answers to, such as the name of a
	// reverse proxy. "*" allows all.
	AllowedHosts []string

	Version string // name and version of the server in Welcome; default "holdfast"

	MaxConnections int           // default 32,768; beyond: 503
	MaxFrameBytes  int           // of a client's frame; default 1 MiB
	MaxInFlight    int           // submits and attaches of a connection that wait for their reply; default 64
	MaxStops       int           // stops that wait for theirs; default 16
	MaxAttachments int           // objects that a connection follows; default 64
	MaxQueued      int           // replies that wait to be written before the connection is no longer read; default 128
	MaxMalformed   int           // bad frames until a connection is closed; default 8
	HelloTimeout   time.Duration // from the upgrade to Hello; default 10 s
	PingInterval   time.Duration // default 25 s; a silent peer is gone after two
	WriteTimeout   time.Duration // without any progress of a write; default 30 s
	CloseTimeout   time.Duration // for the closing handshake; default 2 s
	DrainSpread    time.Duration // over which Drain closes many connections; default 5 s

	// Echo serves /echo, which returns each WebSocket message. For conformance suites, not for production.
	Echo bool

	Clock      clock.Clock
	Logger     *slog.Logger          // default: none
	Registerer prometheus.Registerer // default: none
	Random     func() float64        // in [0, 1), safe for concurrent use; spreads reconnects
}

// Check is one thing that must be well for the server to be ready.
type Check struct {
	Name  string
	Probe func(ctx context.Context) error
}

// withDefaults is the one place of defaults and validation.
func (o Options) withDefaults() (Options, error) {
	if o.Dispatcher == nil {
		return o, errors.New("transport: new server: Options.Dispatcher is nil; give it the host of the objects")
	}
	if o.Authenticator == nil {
		o.Authenticator = Local{}
	}
	if o.Version == "" {
		o.Version = "holdfast"
	}
	for _, n := range []struct {
		field *int
		value int
	}{
		{&o.MaxConnections, 32 << 10}, {&o.MaxFrameBytes, 1 << 20}, {&o.MaxInFlight, 64}, {&o.MaxStops, 16},
		{&o.MaxAttachments, 64}, {&o.MaxQueued, 128}, {&o.MaxMalformed, 8},
	} {
		if *n.field < 0 {
			return o, errors.New("transport: new server: a limit in Options is negative; leave it 0 for its default")
		}
		if *n.field == 0 {
			*n.field = n.value
		}
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.HelloTimeout, 10 * time.Second}, {&o.PingInterval, 25 * time.Second}, {&o.WriteTimeout, 30 * time.Second},
		{&o.CloseTimeout, 2 * time.Second}, {&o.DrainSpread, 5 * time.Second},
	} {
		if *d.field < 0 {
			return o, errors.New("transport: new server: a duration in Options is negative; leave it 0 for its default")
		}
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return o, nil
}

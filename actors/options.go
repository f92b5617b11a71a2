package actors

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/storage"
)

// Options of NewHost. Store and Kinds must be set; Models where a kind uses them. The zero value of everything else is
// a sound default.
type Options struct {
	Store  *storage.Store
	Models inference.Runner
	Kinds  []Kind

	Clock      clock.Clock
	Logger     *slog.Logger          // default: none
	Registerer prometheus.Registerer // default: none
	Random     func() uint64         // safe for concurrent use; default: the runtime's generator

	// IdleAfter is how long an activation stays without an event. Default 1 min.
	IdleAfter time.Duration
	// MaxIdle is how many activations may stay at all; beyond, those longest without an event go first. Default 10,000.
	MaxIdle int
	// MaxActivations bounds the activations, busy ones included; beyond, what would need another is refused as
	// overloaded. Default 10 × MaxIdle.
	MaxActivations int

	MailboxMessages int // client messages that wait for an object; default 128
	MailboxControls int // stops that wait for an object; default 64
	PendingBytes    int // of writes that wait behind a commit before messages wait too; default 4 MiB
	StreamItems     int // what an effect may be ahead of its object; default 256
	StreamBytes     int // the same in bytes; default 256 KiB
	RingBytes       int // recent entries an active object keeps for its readers; default 128 KiB

	// WakeBatch turns are woken at once at boot, the next WakeBatch after WakeInterval, and so on, so that a
	// restart is not a stampede. Default 16 every 50 ms, jittered.
	WakeBatch    int
	WakeInterval time.Duration

	// AlarmBatch is how many alarms may be on their way at once. Default 64.
	AlarmBatch int
	// AlarmRetry is when an alarm whose handler failed comes again; it doubles with each failure up to an hour.
	// Default 1 s.
	AlarmRetry time.Duration

	// Restart is how long after a failure an activation with a live turn is built again; it doubles with each
	// failure in a row up to 30 s. Default 100 ms.
	Restart time.Duration
}

const (
	maxAlarmRetry = time.Hour
	maxRestart    = 30 * time.Second
)

// withDefaults is the one place of defaults and validation.
func (o Options) withDefaults() (Options, error) {
	if o.Store == nil {
		return o, errors.New("actors: new host: Options.Store is nil; open a store first")
	}
	if len(o.Kinds) == 0 {
		return o, errors.New("actors: new host: Options.Kinds is empty; give it at least one kind")
	}
	for _, k := range o.Kinds {
		if err := (ID{Namespace: "n", Kind: k.Name, Name: "n"}).Validate(); err != nil {
			return o, fmt.Errorf("actors: new host: kind %q: %w", k.Name, err)
		}
		if k.New == nil {
			return o, fmt.Errorf("actors: new host: kind %q has no New", k.Name)
		}
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Random == nil {
		o.Random = rand.Uint64
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.IdleAfter, time.Minute}, {&o.WakeInterval, 50 * time.Millisecond}, {&o.AlarmRetry, time.Second},
		{&o.Restart, 100 * time.Millisecond},
	} {
		if *d.field < 0 {
			return o, errors.New("actors: new host: a duration in Options is negative; leave it 0 for its default")
		}
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	for _, n := range []struct {
		field *int
		value int
	}{
		{&o.MaxIdle, 10000}, {&o.MailboxMessages, 128}, {&o.MailboxControls, 64}, {&o.PendingBytes, 4 << 20},
		{&o.StreamItems, 256}, {&o.StreamBytes, 256 << 10}, {&o.RingBytes, 128 << 10}, {&o.WakeBatch, 16},
		{&o.AlarmBatch, 64}, {&o.MaxActivations, 0},
	} {
		if *n.field < 0 {
			return o, errors.New("actors: new host: a limit in Options is negative; leave it 0 for its default")
		}
		if *n.field == 0 {
			*n.field = n.value
		}
	}
	if o.MaxActivations == 0 {
		o.MaxActivations = 10 * o.MaxIdle
	}
	return o, nil
}

package scheduler

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/internal/clock"
)

// Options of a Scheduler. The zero value works.
type Options struct {
	Model  string // name in plans, usage and metrics
	Digest string // of the model's manifest; a plan with another one is refused

	// MaxTokens is the length of an answer to a request that says nothing: 512, or half of the context if
	// that is less.
	MaxTokens int
	// AnswerRoom is how many positions a long conversation must leave for its answer, unless the request's
	// MaxTokens is less: a quarter of the context.
	AnswerRoom int
	// PrefillRows bounds the prompt tokens of a step while any slot decodes: 16, but at most the stepper's rows.
	// More is faster to the first token; less is smoother for those who read already.
	PrefillRows int
	// QueueLimit bounds the waiting runs (256) and TenantLimit those of one tenant (half of QueueLimit), so that
	// no tenant can lock the others out.
	QueueLimit, TenantLimit int
	// Buffer is how many chunks a run may be ahead of its consumer: 64, at least 2.
	Buffer int
	// MaxFailures failed steps in a row make the model unavailable: 3.
	MaxFailures int

	Clock      clock.Clock           // clock.Real
	Logger     *slog.Logger          // none
	Registerer prometheus.Registerer // none
}

// withDefaults returns o with every default filled in for a stepper.
func (o Options) withDefaults(s inference.Stepper) (Options, error) {
	for _, n := range []struct {
		name  string
		value int
	}{
		{"MaxTokens", o.MaxTokens}, {"AnswerRoom", o.AnswerRoom}, {"PrefillRows", o.PrefillRows},
		{"QueueLimit", o.QueueLimit}, {"TenantLimit", o.TenantLimit}, {"Buffer", o.Buffer}, {"MaxFailures", o.MaxFailures},
	} {
		if n.value < 0 {
			return o, fmt.Errorf("scheduler: option %s is %d; use 0 for its default", n.name, n.value)
		}
	}
	defaultTo := func(p *int, value int) {
		if *p == 0 {
			*p = max(value, 1)
		}
	}
	defaultTo(&o.MaxTokens, min(512, s.Context()/2))
	defaultTo(&o.AnswerRoom, s.Context()/4)
	defaultTo(&o.PrefillRows, 16)
	defaultTo(&o.QueueLimit, 256)
	defaultTo(&o.TenantLimit, (o.QueueLimit+1)/2)
	defaultTo(&o.Buffer, 64)
	defaultTo(&o.MaxFailures, 3)
	o.Buffer = max(o.Buffer, 2)
	o.PrefillRows = min(o.PrefillRows, s.MaxRows())
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

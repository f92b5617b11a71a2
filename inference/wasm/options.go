package wasm

import (
	"fmt"
	"log/slog"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/scheduler"
)

// Options of a loaded model. The zero value is valid.
type Options struct {
	// Slots is how many generations are computed side by side. Default 8.
	Slots int
	// Context is the number of positions a slot; never more than the model was trained for. Default 2048.
	Context int
	// MaxRows bounds the rows of one step, and with it how long running streams wait for a prefill. Default 64.
	MaxRows int
	// MaxLogits bounds the rows of one step that want logits. Default Slots, at most MaxRows.
	MaxLogits int
	// Scheduler is for the models that a Runtime loads. Model and Digest are set by Load, Logger if it is nil.
	Scheduler scheduler.Options
	// Logger hears why derived files had to be made again. Default: nothing is logged.
	Logger *slog.Logger
}

// withDefaults returns o with every default filled in.
func (o Options) withDefaults() (Options, error) {
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	set(&o.Slots, 8)
	set(&o.Context, 2048)
	set(&o.MaxRows, 64)
	set(&o.MaxLogits, min(o.Slots, o.MaxRows))
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, v := range []struct {
		name       string
		value, max int
	}{{"slots", o.Slots, 4096}, {"context", o.Context, 1 << 20}, {"rows a step", o.MaxRows, 4096}, {"logits a step", o.MaxLogits, o.MaxRows}} {
		if v.value < 1 || v.value > v.max {
			return o, fmt.Errorf("%w: %s is %d, must be 1 to %d", inference.ErrInvalidRequest, v.name, v.value, v.max)
		}
	}
	return o, nil
}

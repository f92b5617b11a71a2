package scheduler_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/inference/inferencetest"
	"github.com/holdfast-ai/holdfast/inference/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a scheduler over a stepper, whose violations fail the test.
func open(t testing.TB, so inferencetest.StepperOptions, o scheduler.Options) (*scheduler.Scheduler, *inferencetest.Stepper) {
	t.Helper()
	stepper := inferencetest.NewStepper(so)
	if o.Model == "" {
		o.Model = "fake"
	}
	s, err := scheduler.New(stepper, inferencetest.Tokenizer{}, inferencetest.Template{}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, v := range stepper.Violations() {
			t.Error(v)
		}
	})
	return s, stepper
}

func TestConformance(t *testing.T) {
	for name, c := range map[string]struct {
		stepper inferencetest.StepperOptions
		o       scheduler.Options
	}{
		"usual":                {},
		"one slot, few rows":   {inferencetest.StepperOptions{Slots: 2, Rows: 3, Logits: 1, EndBias: -20}, scheduler.Options{Buffer: 2}},
		"more slots than rows": {inferencetest.StepperOptions{Slots: 8, Rows: 5, Logits: 2, EndBias: -20}, scheduler.Options{PrefillRows: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			inferencetest.Run(t, inferencetest.Config{
				Open: func(t *testing.T) inferencetest.Model {
					s, _ := open(t, c.stepper, c.o)
					return s
				},
				Ask: "Why is the sky blue?",
			})
		})
	}
}

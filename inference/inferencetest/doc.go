// Package inferencetest has the suite that every runner passes, and a fake model to build runners on.
//
// The central function is Run; a runtime's test calls it with a way to open a fresh model:
//
//	func TestConformance(t *testing.T) {
//		inferencetest.Run(t, inferencetest.Config{
//			Open: func(t *testing.T) inferencetest.Model { return echo.New(echo.Options{}) },
//			Ask:  "/echo n=30",
//		})
//	}
//
// Stepper, Tokenizer and Template make a model without weights: its logits are a function of a slot's whole history,
// so any mistake in a scheduler's use of it, such as a stale position or a foreign token, changes the answer, and
// many are reported as errors at once.
package inferencetest

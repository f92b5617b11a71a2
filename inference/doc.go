// Package inference is what every model looks like from outside: one request type a task, one interface to run it.
//
// The central type is Runner. A caller makes a Request and runs it; the answer arrives piece by piece through emit,
// on the caller's goroutine, and the call returns when the answer has ended:
//
//	usage, err := runner.Run(ctx, &inference.Request{
//		Model:    "smollm2-135m-instruct",
//		Messages: []inference.Message{{Role: inference.User, Content: "Why is the sky blue?"}},
//	}, func(c inference.Chunk) error {
//		_, err := io.WriteString(os.Stdout, c.Text)
//		return err
//	})
//
// Abilities beyond that are optional interfaces (Planner). Packages below this one are of three sorts: formats
// (gguf, tokenizer, template), which know nothing of ours; the scheduler, which turns a batch Stepper into a Runner;
// and runtimes (wasm, echo, …), which load a model and may use formats and scheduler but never each other.
package inference

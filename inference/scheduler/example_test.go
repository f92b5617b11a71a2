package scheduler_test

import (
	"context"
	"fmt"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/inferencetest"
	"github.com/holdfast-ai/holdfast/inference/scheduler"
)

func Example() {
	model := inferencetest.NewStepper(inferencetest.StepperOptions{}) // a real one has weights
	s, err := scheduler.New(model, inferencetest.Tokenizer{}, inferencetest.Template{}, scheduler.Options{Model: "fake"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close() // closes the model too

	ctx := context.Background()
	request := &inference.Request{Messages: []inference.Message{{Role: inference.User, Content: "Why is the sky blue?"}}}
	// The plan is stored before the answer begins, and each chunk as it comes: that is all it takes to go on after
	// a crash.
	plan, err := s.Plan(ctx, request)
	if err != nil {
		fmt.Println(err)
		return
	}
	crash := fmt.Errorf("crash")
	var durable []uint32
	_, err = s.Run(ctx, &inference.Request{Plan: plan}, func(c inference.Chunk) error {
		if c.Step > 5 {
			return crash
		}
		durable = append(durable, c.Tokens...)
		return nil
	})
	fmt.Println("interrupted:", err == crash)
	usage, err := s.Run(ctx, &inference.Request{Plan: plan, Resume: durable}, func(c inference.Chunk) error {
		durable = append(durable, c.Tokens...)
		return nil
	})
	fmt.Println("finished:", usage.Finish, err)
	// Output:
	// interrupted: true
	// finished: stop <nil>
}

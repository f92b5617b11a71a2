package wasm_test

import (
	"context"
	"fmt"
	"log"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/wasm"
)

// A model is loaded once and answers many.
func ExampleRuntime() {
	ctx := context.Background()
	manifest := &inference.Manifest{
		Name: "smollm2-135m-instruct", Family: "smollm2", Task: "generate", Runtime: wasm.Name,
		Files: []inference.File{{Path: "model.gguf", Size: 98362432, SHA256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}},
	}
	runtime := wasm.NewRuntime(wasm.Options{Slots: 4})
	model, err := runtime.Load(ctx, manifest, "models/smollm2", "cache", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	_, err = model.Run(ctx, &inference.Request{
		Messages: []inference.Message{{Role: inference.User, Content: "Why is the sky blue?"}},
	}, func(c inference.Chunk) error {
		fmt.Print(c.Text)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

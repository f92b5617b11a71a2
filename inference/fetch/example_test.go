package fetch_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/fetch"
)

func ExamplePull() {
	dir, err := os.MkdirTemp("", "models")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	m := &inference.Manifest{
		Name: "tiny", Version: "1", Task: "generate", Runtime: "wasm",
		Files: []inference.File{{Path: "w.gguf", Size: 4, SHA256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}},
	}
	file := dir + "/download.bin"
	if err := os.WriteFile(file, []byte("test"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	err = fetch.Pull(context.Background(), m, fetch.Options{Dir: dir, From: file})
	fmt.Println("the right file:", err)

	if err := os.WriteFile(file, []byte("tess"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	err = fetch.Pull(context.Background(), m, fetch.Options{Dir: dir + "/other", From: file})
	fmt.Println("another:", errors.Is(err, fetch.ErrDigest))
	// Output:
	// the right file: <nil>
	// another: true
}

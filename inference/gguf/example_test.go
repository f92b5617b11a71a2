package gguf_test

import (
	"bytes"
	"fmt"
	"log"

	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/gguf/gguftest"
)

func Example() {
	data := gguftest.New().
		Set("llama.embedding_length", uint32(3)).
		Tensor("token_embd.weight", gguf.F32, gguftest.Floats(1, 2, 3, 4, 5, 6), 3, 2).
		Bytes()

	f, err := gguf.New(bytes.NewReader(data), int64(len(data)), "tiny.gguf") // or gguf.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	width, err := f.Uint("llama.embedding_length")
	if err != nil {
		log.Fatal(err)
	}
	embedding, err := f.Tensor("token_embd.weight")
	if err != nil {
		log.Fatal(err)
	}
	row := make([]float32, width)
	for i := range embedding.Rows() {
		if err := embedding.Row(i, row); err != nil {
			log.Fatal(err)
		}
		fmt.Println(row)
	}
	// Output:
	// [1 2 3]
	// [4 5 6]
}

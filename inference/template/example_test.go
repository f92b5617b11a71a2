package template_test

import (
	"fmt"
	"log"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/template"
	"github.com/holdfast-ai/holdfast/inference/tokenizer"
)

func Example() {
	tok, err := tokenizer.New(tokenizer.Vocabulary{ // or tokenizer.FromGGUF(file)
		Pre:    "gpt-2",
		Tokens: []string{"<|im_start|>", "<|im_end|>", "Ċ", "u", "s", "e", "r", "a", "i", "t", "n", "H"},
		Kinds:  []tokenizer.Kind{tokenizer.Control, tokenizer.Control, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
	})
	if err != nil {
		log.Fatal(err)
	}
	tmpl, err := template.ForFamily("chatml")
	if err != nil {
		log.Fatal(err)
	}
	prompt, err := tmpl.Render(nil, tok, []inference.Message{{Role: inference.User, Content: "Hi"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tmpl.Name(), prompt)
	// Output: chatml/1 [0 3 4 5 6 2 11 8 1 2 0 7 4 4 8 4 9 7 10 9 2]
}

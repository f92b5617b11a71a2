package tokenizer_test

import (
	"fmt"
	"log"

	"github.com/holdfast-ai/holdfast/inference/tokenizer"
)

func Example() {
	t, err := tokenizer.New(tokenizer.Vocabulary{ // or tokenizer.FromGGUF(file)
		Pre:    "gpt-2",
		Tokens: []string{"a", "b", "Ġ", "Ã", "¤", "ab", "Ġab", "<|im_end|>"},
		Kinds:  []tokenizer.Kind{1, 1, 1, 1, 1, 1, 1, tokenizer.Control},
		Merges: []string{"a b", "Ġ ab"},
	})
	if err != nil {
		log.Fatal(err)
	}
	tokens := t.Encode(nil, "ab abä")
	fmt.Println(tokens)
	d := t.NewDecoder()
	for _, token := range tokens {
		fmt.Printf("%q ", d.Push(token))
	}
	fmt.Printf("%q\n", d.Flush())
	// Output:
	// [5 6 3 4]
	// "ab" " ab" "" "ä" ""
}

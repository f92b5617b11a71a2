package tokenizer

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestCuts compares every pre-tokenizer's pieces with those of its regular expression.
func TestCuts(t *testing.T) {
	data, err := os.ReadFile("testdata/vectors.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for line := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n") {
		var v struct {
			Text string
			Cuts map[string][]int
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		for name, want := range v.Cuts {
			pre, ok := preTokenizers(name)
			if !ok {
				t.Fatalf("no pre-tokenizer %q", name)
			}
			if got := cuts(pre, v.Text); !slices.Equal(got, want) {
				t.Errorf("%s: %q is cut at %d, want %d", name, v.Text, got, want)
			}
			seen[name]++
		}
	}
	for _, name := range []string{"gpt-2", "smollm", "llama-bpe", "qwen2"} {
		if seen[name] < 500 {
			t.Errorf("%s: only %d texts", name, seen[name])
		}
	}
}

func cuts(pre preTokenizer, text string) (lengths []int) {
	for len(text) > 0 {
		n := pre.next(text)
		lengths = append(lengths, n)
		text = text[n:]
	}
	return lengths
}

// FuzzCuts: any bytes are cut completely, and never inside a character.
func FuzzCuts(f *testing.F) {
	f.Add("It's 12\r\n  x\xff\xf0\x9f")
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range []string{"gpt-2", "smollm", "llama-bpe", "qwen2"} {
			pre, _ := preTokenizers(name)
			at := 0
			for at < len(text) {
				n := pre.next(text[at:])
				if n < 1 || n > len(text)-at {
					t.Fatalf("%s: %q: a piece of %d bytes at %d", name, text, n, at)
				}
				at += n
				if r, size := utf8.DecodeLastRuneInString(text[:at]); r == utf8.RuneError && size == 1 && utf8.ValidString(text) {
					t.Fatalf("%s: %q is cut inside a character at %d", name, text, at)
				}
			}
		}
	})
}

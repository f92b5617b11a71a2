package tokenizer

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// preTokenizer cuts text into pieces, in which merges happen.
type preTokenizer struct {
	// next returns the length of the first piece of s, which is not empty.
	next func(s string) int
	// wholeFirst says that a piece which is a token becomes that token, even if merges would not lead there.
	wholeFirst bool
}

// preTokenizers returns the pre-tokenizer that GGUF files call name. Only names whose cuts have been compared with
// another implementation's are known.
func preTokenizers(name string) (preTokenizer, bool) {
	switch name {
	case "smollm":
		return preTokenizer{next: nextDigitsApart}, true
	case "gpt-2", "gpt2":
		return preTokenizer{next: nextGPT2}, true
	case "llama-bpe", "llama3", "llama-v3":
		return preTokenizer{next: nextLlama3, wholeFirst: true}, true
	case "qwen2", "deepseek-r1-qwen":
		return preTokenizer{next: nextQwen2}, true
	}
	return preTokenizer{}, false
}

// class is what the patterns distinguish.
type class uint8

const (
	other   class = iota // punctuation, symbols, marks, and bytes that are not UTF-8
	letter               // \p{L}
	number               // \p{N}
	space                // \s
	nothing              // the end of the text
)

// classify returns the class of the first character of s, and its length.
func classify(s string) (class, int) {
	if s == "" {
		return nothing, 0
	}
	if c := s[0]; c < utf8.RuneSelf {
		switch {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
			return letter, 1
		case '0' <= c && c <= '9':
			return number, 1
		case c == ' ' || '\t' <= c && c <= '\r':
			return space, 1
		}
		return other, 1
	}
	r, n := utf8.DecodeRuneInString(s)
	switch {
	case unicode.IsLetter(r):
		return letter, n
	case unicode.IsNumber(r):
		return number, n
	case unicode.IsSpace(r):
		return space, n
	}
	return other, n
}

// run returns the length of the characters of class c, at most most, that s begins with.
func run(s string, c class, most int) int {
	end := 0
	for ; most > 0; most-- {
		k, n := classify(s[end:])
		if k != c {
			break
		}
		end += n
	}
	return end
}

const unlimited = math.MaxInt

// nextGPT2 cuts by 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func nextGPT2(s string) int { return nextOfGPT2(s, false) }

// nextDigitsApart cuts by \p{N}, and what lies between by the pattern of GPT-2. So each digit is a piece, and it is like
// the end of the text to the spaces in front of it.
func nextDigitsApart(s string) int { return nextOfGPT2(s, true) }

func nextOfGPT2(s string, digitsApart bool) int {
	if n := contraction(s); n > 0 {
		return n
	}
	c, first := classify(s)
	from := 0
	if s[0] == ' ' { // belongs to a word, number or symbols behind it
		if k, _ := classify(s[1:]); k != space && k != nothing {
			c, from = k, 1
		}
	}
	switch {
	case c == number && digitsApart: // or the space in front of it
		return first
	case c != space:
		return from + run(s[from:], c, unlimited)
	}
	return spaces(s, digitsApart)
}

// spaces returns the length of the piece that a run of spaces makes: all of it at the end of the text, else all but the
// last, which is left to what follows.
func spaces(s string, digitsApart bool) int {
	end, last := 0, 0
	for {
		k, n := classify(s[end:])
		switch {
		case k == space:
			last = end
			end += n
			continue
		case k == nothing || k == number && digitsApart || last == 0:
			return end
		}
		return last
	}
}

// contraction returns the length of an English contraction's ending at the beginning of s.
func contraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	switch s[1] {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(s) > 2 && (s[1:3] == "re" || s[1:3] == "ve" || s[1:3] == "ll") {
		return 3
	}
	return 0
}

// nextLlama3 cuts by
// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func nextLlama3(s string) int { return nextOfLlama3(s, 3) }

// nextQwen2 cuts as nextLlama3, but for single digits.
func nextQwen2(s string) int { return nextOfLlama3(s, 1) }

func nextOfLlama3(s string, digits int) int {
	if n := anyContraction(s); n > 0 {
		return n
	}
	c, first := classify(s)
	switch c {
	case letter:
		return run(s, letter, unlimited)
	case number:
		return run(s, number, digits)
	}
	if s[0] != '\r' && s[0] != '\n' { // any one character belongs to a word behind it
		if n := run(s[first:], letter, unlimited); n > 0 {
			return first + n
		}
	}
	from := 0
	if s[0] == ' ' {
		from = 1
	}
	if n := run(s[from:], other, unlimited); n > 0 {
		end := from + n
		return end + len(s[end:]) - len(strings.TrimLeft(s[end:], "\r\n"))
	}
	if end := strings.LastIndexAny(s[:run(s, space, unlimited)], "\r\n"); end >= 0 {
		return end + 1
	}
	return spaces(s, false)
}

// anyContraction is contraction for letters of either case, and for ſ (U+017F), whose capital is S.
func anyContraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	switch s[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(s) > 2 && s[2]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if len(s) > 2 && s[2]|0x20 == 'l' {
			return 3
		}
	}
	if strings.HasPrefix(s[1:], "ſ") {
		return 1 + len("ſ")
	}
	return 0
}

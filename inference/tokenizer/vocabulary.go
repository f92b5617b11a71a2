package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/holdfast-ai/holdfast/inference/gguf"
)

// Sentinel errors of New and FromGGUF.
var (
	ErrUnsupported = errors.New("tokenizer not supported")
	ErrVocabulary  = errors.New("invalid vocabulary")
)

// Kind is what a token is for, numbered as in GGUF files.
type Kind uint8

// Kinds of tokens.
const (
	Normal      Kind = 1
	Unknown     Kind = 2
	Control     Kind = 3 // frames text, stands for none
	UserDefined Kind = 4 // stands for its own spelling
	Unused      Kind = 5
	Byte        Kind = 6
)

// Vocabulary is what a Tokenizer is made of.
type Vocabulary struct {
	Pre    string   // name of the pre-tokenizer, as in GGUF files
	Tokens []string // spelled in the byte-level alphabet, except control and user-defined ones
	Kinds  []Kind   // one a token; nil if all are normal
	Merges []string // "left right", the most frequent first
	End    []uint32 // tokens that end an answer, besides the well-known control tokens that do
}

const (
	maxVocabulary = 1 << 22
	ggmlPrefix    = "tokenizer.ggml."
)

// endNames are the control tokens that end an answer in the families known here.
var endNames = [...]string{"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}

// FromGGUF makes the tokenizer of a model file.
func FromGGUF(f *gguf.File) (*Tokenizer, error) {
	v, err := readVocabulary(f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer of %s: %w", f.Name(), err)
	}
	t, err := New(v)
	if err != nil {
		return nil, fmt.Errorf("tokenizer of %s: %w", f.Name(), err)
	}
	return t, nil
}

func readVocabulary(f *gguf.File) (Vocabulary, error) {
	var v Vocabulary
	model, err := f.String(ggmlPrefix + "model")
	if err != nil {
		return v, fmt.Errorf("%w: %w", ErrVocabulary, err)
	}
	if model != "gpt2" {
		return v, fmt.Errorf("%w: the vocabulary is of the sort %q; byte-level BPE (\"gpt2\") is known", ErrUnsupported, model)
	}
	if space, err := f.Bool(ggmlPrefix + "add_space_prefix"); err == nil && space {
		return v, fmt.Errorf("%w: text is to get a space in front", ErrUnsupported)
	}
	if v.Pre, err = f.String(ggmlPrefix + "pre"); err != nil {
		return v, fmt.Errorf("%w: the file does not name its pre-tokenizer: %w", ErrUnsupported, err)
	}
	if v.Tokens, err = f.Strings(ggmlPrefix + "tokens"); err != nil {
		return v, fmt.Errorf("%w: %w", ErrVocabulary, err)
	}
	if v.Merges, err = f.Strings(ggmlPrefix + "merges"); err != nil {
		return v, fmt.Errorf("%w: %w", ErrVocabulary, err)
	}
	if v.Kinds, err = readKinds(f); err != nil {
		return v, err
	}
	for _, key := range []string{"eos_token_id", "eot_token_id", "eom_token_id"} {
		id, err := f.Uint(ggmlPrefix + key)
		switch {
		case errors.Is(err, gguf.ErrNotFound):
		case err != nil:
			return v, fmt.Errorf("%w: %w", ErrVocabulary, err)
		default:
			v.End = append(v.End, uint32(min(id, math.MaxUint32)))
		}
	}
	return v, nil
}

func readKinds(f *gguf.File) ([]Kind, error) {
	numbers, err := f.Ints(ggmlPrefix + "token_type")
	if errors.Is(err, gguf.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrVocabulary, err)
	}
	kinds := make([]Kind, len(numbers))
	for i, n := range numbers {
		if n < int64(Normal) || n > int64(Byte) {
			return nil, fmt.Errorf("%w: token %d is of the unknown kind %d", ErrVocabulary, i, n)
		}
		kinds[i] = Kind(n)
	}
	return kinds, nil
}

// New makes a tokenizer. It fails with ErrUnsupported if the pre-tokenizer is not known and with ErrVocabulary if
// the vocabulary contradicts itself.
func New(v Vocabulary) (*Tokenizer, error) {
	pre, ok := preTokenizers(v.Pre)
	if !ok {
		return nil, fmt.Errorf("%w: the pre-tokenizer %q is not known", ErrUnsupported, v.Pre)
	}
	if len(v.Tokens) == 0 || len(v.Tokens) > maxVocabulary {
		return nil, fmt.Errorf("%w: it has %d tokens; 1 to %d are possible", ErrVocabulary, len(v.Tokens), maxVocabulary)
	}
	if v.Kinds != nil && len(v.Kinds) != len(v.Tokens) {
		return nil, fmt.Errorf("%w: it has %d tokens and %d kinds", ErrVocabulary, len(v.Tokens), len(v.Kinds))
	}
	t := &Tokenizer{pre: pre, control: map[string]uint32{}, end: map[uint32]bool{}}
	spelled := t.spell(v)
	for i, id := range v.End {
		if int(id) >= len(v.Tokens) {
			return nil, fmt.Errorf("%w: end token %d is %d and there are %d tokens", ErrVocabulary, i, id, len(v.Tokens))
		}
		t.end[id] = true
	}
	for _, name := range endNames {
		if id, ok := t.control[name]; ok {
			t.end[id] = true
		}
	}
	if err := t.readMerges(v.Merges, spelled); err != nil {
		return nil, err
	}
	t.findWhole(v.Kinds)
	return t, nil
}

// spell fills what tokens stand for, and returns the ids of normal tokens by their spelling. Of several tokens with the
// same spelling the first counts.
func (t *Tokenizer) spell(v Vocabulary) map[string]uint32 {
	spelled := make(map[string]uint32, len(v.Tokens))
	t.ends = make([]uint32, len(v.Tokens))
	for id, spelling := range v.Tokens {
		kind := Normal
		if v.Kinds != nil {
			kind = v.Kinds[id]
		}
		switch kind {
		case Control:
			if _, twice := t.control[spelling]; !twice {
				t.control[spelling] = uint32(id)
			}
		case UserDefined:
			t.text = append(t.text, spelling...)
		case Normal, Byte:
			t.text = appendBytes(t.text, spelling)
			if _, twice := spelled[spelling]; !twice {
				spelled[spelling] = uint32(id)
			}
		}
		t.ends[id] = uint32(len(t.text))
	}
	for b := range t.bytes {
		t.bytes[b] = none
		if id, ok := spelled[string(byteLetters[b])]; ok {
			t.bytes[b] = id
		}
	}
	return spelled
}

func (t *Tokenizer) readMerges(merges []string, spelled map[string]uint32) error {
	if len(merges) > maxVocabulary {
		return fmt.Errorf("%w: it has %d merges; at most %d are possible", ErrVocabulary, len(merges), maxVocabulary)
	}
	t.merges = make(map[uint64]merge, len(merges))
	for rank, spelling := range merges {
		left, right, ok := strings.Cut(spelling, " ")
		if !ok {
			return fmt.Errorf("%w: merge %d, %q, is not two tokens with a space between", ErrVocabulary, rank, spelling)
		}
		l, lok := spelled[left]
		r, rok := spelled[right]
		both, ok := spelled[left+right]
		if !lok || !rok || !ok {
			return fmt.Errorf("%w: merge %d, %q, is of or to something that is no token", ErrVocabulary, rank, spelling)
		}
		if _, twice := t.merges[pair(l, r)]; !twice {
			t.merges[pair(l, r)] = merge{rank: uint32(rank), token: both}
		}
	}
	return nil
}

// findWhole collects the tokens that a piece with their bytes becomes at once, so that most pieces need no merging.
// For nearly every token that is what merging gives, but not for all.
func (t *Tokenizer) findWhole(kinds []Kind) {
	t.whole = make(map[string]uint32, len(t.ends))
	all := string(t.text)
	var m merger
	var tokens []uint32
	from := uint32(0)
	for id, end := range t.ends {
		piece := all[from:end]
		from = end
		if len(piece) < 2 || kinds != nil && kinds[id] != Normal {
			continue
		}
		if t.pre.wholeFirst {
			if _, twice := t.whole[piece]; !twice {
				t.whole[piece] = uint32(id)
			}
			continue
		}
		tokens = m.encode(tokens[:0], t, piece)
		if len(tokens) == 1 && tokens[0] == uint32(id) {
			t.whole[piece] = uint32(id)
		}
	}
}

// byteLetters is the byte-level alphabet: the letter that each byte is spelled as. Printable characters of Latin-1 are
// themselves, the others follow from U+0100 on.
var byteLetters, letterBytes = func() (letters [256]rune, bytes map[rune]byte) {
	bytes = make(map[rune]byte, 256)
	next := rune(256)
	for b := range letters {
		switch {
		case b >= '!' && b <= '~', b >= 0xa1 && b <= 0xac, b >= 0xae:
			letters[b] = rune(b)
		default:
			letters[b] = next
			next++
		}
		bytes[letters[b]] = byte(b)
	}
	return letters, bytes
}()

// appendBytes appends the bytes that spelling stands for, or spelling itself if it has letters outside the alphabet.
func appendBytes(dst []byte, spelling string) []byte {
	start := len(dst)
	for _, letter := range spelling {
		b, ok := letterBytes[letter]
		if !ok {
			return append(dst[:start], spelling...)
		}
		dst = append(dst, b)
	}
	return dst
}

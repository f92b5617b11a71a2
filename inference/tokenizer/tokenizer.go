package tokenizer

import (
	"math"
	"sync"
)

// none stands for a byte without a token and for a pair without a merge.
const none = math.MaxUint32

// maxPiece bounds the memory for merging: a longer piece, such as a megabyte of one letter, is cut there.
const maxPiece = 1 << 20

// Tokenizer is a vocabulary ready for use. It is immutable: any number of goroutines may use it at once, and nothing
// that one of them encodes can be noticed by another.
type Tokenizer struct {
	pre     preTokenizer
	control map[string]uint32
	end     map[uint32]bool
	text    []byte   // what all tokens stand for, one after the other
	ends    []uint32 // end of each token's bytes in text
	bytes   [256]uint32
	merges  map[uint64]merge
	whole   map[string]uint32
	mergers sync.Pool // of *merger
}

type merge struct{ rank, token uint32 }

func pair(left, right uint32) uint64 { return uint64(left)<<32 | uint64(right) }

// Encode appends the tokens of text to dst. No control token is among them.
func (t *Tokenizer) Encode(dst []uint32, text string) []uint32 {
	m, _ := t.mergers.Get().(*merger)
	if m == nil {
		m = new(merger)
	}
	for len(text) > 0 {
		n := t.pre.next(text[:min(len(text), maxPiece)])
		piece := text[:n]
		text = text[n:]
		if id, ok := t.whole[piece]; ok {
			dst = append(dst, id)
		} else {
			dst = m.encode(dst, t, piece)
		}
	}
	if m.small() {
		t.mergers.Put(m)
	}
	return dst
}

// Bytes returns what token stands for: nothing for control tokens and for numbers outside the vocabulary. The slice is
// shared and has no spare capacity.
func (t *Tokenizer) Bytes(token uint32) []byte {
	if uint64(token) >= uint64(len(t.ends)) {
		return nil
	}
	from := uint32(0)
	if token > 0 {
		from = t.ends[token-1]
	}
	to := t.ends[token]
	return t.text[from:to:to]
}

// IsEnd reports whether token ends an answer.
func (t *Tokenizer) IsEnd(token uint32) bool { return t.end[token] }

// Vocabulary is the number of tokens.
func (t *Tokenizer) Vocabulary() int { return len(t.ends) }

// Control returns the control token of that name, such as "<|im_start|>".
func (t *Tokenizer) Control(name string) (uint32, bool) {
	id, ok := t.control[name]
	return id, ok
}

// Encodable reports whether the vocabulary has a token for b. Encode leaves out bytes without one.
func (t *Tokenizer) Encodable(b byte) bool { return t.bytes[b] != none }

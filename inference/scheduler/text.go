package scheduler

import (
	"bytes"
	"unicode/utf8"

	"github.com/holdfast-ai/holdfast/inference"
)

// TextStream makes chunks of the tokens of one answer, incrementally: it holds tokens and text back together while
// a character is incomplete or a stop string may yet match (see "Tokens and text" in the package comment). Runtimes
// without a scheduler may use it too. Not safe for concurrent use.
//
//	t := scheduler.NewTextStream(tokenizer, stops, resume)
//	for !t.Stopped() && more {
//		if c, ok := t.Push(token); ok { … }
//	}
//	if c, ok := t.Finish(); ok { … }
//
// Invariants between calls:
//   - text[:sent] has left already and is kept only because a stop string may begin in it (see NewTextStream);
//   - tokens are those not yet sent; ends[i] is the length of text after tokens[i], or -1 if a character was
//     incomplete there, so that no chunk can end at that token;
//   - partial is shorter than a character.
type TextStream struct {
	tokenizer inference.Tokenizer
	stops     [][]byte

	text    []byte
	sent    int
	tokens  []uint32
	ends    []int
	partial []byte
	step    int // of tokens[0] in the answer
	stopped bool
}

// NewTextStream returns a stream after the tokens of resume, whose chunks have left already. Chunks end only where
// nothing is held back, so its state is then that of the uninterrupted stream. If resume ends elsewhere its text
// counts as sent all the same, and a character or a stop string that it begins may end in later tokens.
func NewTextStream(tokenizer inference.Tokenizer, stops []string, resume []uint32) *TextStream {
	t := &TextStream{tokenizer: tokenizer}
	for _, stop := range stops {
		t.stops = append(t.stops, []byte(stop))
	}
	for _, token := range resume {
		t.add(token)
		if t.stopped {
			break
		}
	}
	t.step, t.tokens, t.ends = len(resume), t.tokens[:0], t.ends[:0]
	t.sent = len(t.text)
	t.drop(t.sent - t.heldBytes())
	return t
}

// Stopped reports whether a stop string has ended the answer. Nothing more may be pushed then.
func (t *TextStream) Stopped() bool { return t.stopped }

// Push takes the answer's next token and returns the chunk that can leave, if any.
func (t *TextStream) Push(token uint32) (inference.Chunk, bool) {
	t.add(token)
	if t.stopped {
		return t.take(len(t.tokens), len(t.text))
	}
	free := len(t.text) - t.heldBytes()
	n := len(t.tokens)
	for n > 0 && (t.ends[n-1] < 0 || t.ends[n-1] > free) {
		n--
	}
	if n == 0 || t.ends[n-1] <= t.sent {
		return inference.Chunk{}, false // nothing to show
	}
	return t.take(n, t.ends[n-1])
}

// Finish returns what is still held back at the end of the answer.
func (t *TextStream) Finish() (inference.Chunk, bool) {
	if len(t.tokens) == 0 {
		return inference.Chunk{}, false
	}
	for range t.partial {
		t.text = utf8.AppendRune(t.text, utf8.RuneError)
	}
	t.partial = t.partial[:0]
	return t.take(len(t.tokens), len(t.text))
}

// add appends token and looks for a stop string.
func (t *TextStream) add(token uint32) {
	before := len(t.text)
	t.partial = append(t.partial, t.tokenizer.Bytes(token)...)
	used := 0
	for used < len(t.partial) && utf8.FullRune(t.partial[used:]) {
		r, n := utf8.DecodeRune(t.partial[used:])
		t.text = utf8.AppendRune(t.text, r) // U+FFFD for a byte that begins no character
		used += n
	}
	t.partial = append(t.partial[:0], t.partial[used:]...)
	end := len(t.text)
	if len(t.partial) > 0 {
		end = -1
	}
	t.tokens = append(t.tokens, token)
	t.ends = append(t.ends, end)
	t.cut(before)
}

// cut ends the text before the first stop string in it. Only matches that end behind text[:before] are possible.
func (t *TextStream) cut(before int) {
	at := -1
	for _, stop := range t.stops {
		from := max(0, before-len(stop)+1)
		if i := bytes.Index(t.text[from:], stop); i >= 0 && (at < 0 || from+i < at) {
			at = from + i
		}
	}
	if at >= 0 {
		t.text, t.stopped = t.text[:at], true
	}
}

// heldBytes is the length of the longest end of the text that begins a stop string.
func (t *TextStream) heldBytes() int {
	held := 0
	for _, stop := range t.stops {
		for n := min(len(stop)-1, len(t.text)); n > held; n-- {
			if bytes.HasSuffix(t.text, stop[:n]) {
				held = n
				break
			}
		}
	}
	return held
}

// take makes the first n tokens a chunk, with the unsent text up to end.
func (t *TextStream) take(n, end int) (inference.Chunk, bool) {
	c := inference.Chunk{Step: t.step, Tokens: append([]uint32(nil), t.tokens[:n]...)}
	if end > t.sent {
		c.Text = string(t.text[t.sent:end])
	}
	t.step += n
	t.tokens = append(t.tokens[:0], t.tokens[n:]...)
	t.ends = append(t.ends[:0], t.ends[n:]...)
	t.drop(end)
	return c, true
}

// drop removes text[:n].
func (t *TextStream) drop(n int) {
	t.text = append(t.text[:0], t.text[min(n, len(t.text)):]...)
	t.sent = max(0, t.sent-n)
	for i, end := range t.ends {
		if end >= 0 {
			t.ends[i] = end - n
		}
	}
}

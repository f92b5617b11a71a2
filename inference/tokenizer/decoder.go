package tokenizer

import "unicode/utf8"

// Decoder makes text of tokens that arrive one by one. A character whose bytes come in several tokens is held back until
// it is whole; bytes that cannot become a character turn into U+FFFD, each by itself. Not safe for concurrent use.
type Decoder struct {
	t    *Tokenizer
	held []byte // begins a character, is shorter than one
}

// NewDecoder returns a decoder at the beginning of a text.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Push takes the next token and returns the characters that are now whole, perhaps none.
func (d *Decoder) Push(token uint32) string {
	b := append(d.held, d.t.Bytes(token)...)
	text := make([]byte, 0, len(b))
	for len(b) > 0 && utf8.FullRune(b) {
		r, n := utf8.DecodeRune(b)
		text = utf8.AppendRune(text, r)
		b = b[n:]
	}
	d.held = append(d.held[:0], b...)
	return string(text)
}

// Held is the number of bytes of an unfinished character.
func (d *Decoder) Held() int { return len(d.held) }

// Flush ends the text: it returns U+FFFD for each byte held back. The decoder is then at the beginning of a text.
func (d *Decoder) Flush() string {
	var text []byte
	for range d.held {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	d.held = d.held[:0]
	return string(text)
}

package scheduler

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/inference"
)

// pieces is a tokenizer whose token i stands for pieces[i].
type pieces []string

func (p pieces) Encode(dst []uint32, _ string) []uint32 { return dst }
func (p pieces) Bytes(token uint32) []byte              { return []byte(p[token]) }
func (p pieces) IsEnd(uint32) bool                      { return false }
func (p pieces) Vocabulary() int                        { return len(p) }

// stream pushes tokens until the answer ends and returns the chunks.
func stream(p pieces, stops []string, tokens []uint32, resumed int) []inference.Chunk {
	t := NewTextStream(p, stops, tokens[:resumed])
	var chunks []inference.Chunk
	for _, token := range tokens[resumed:] {
		if t.Stopped() {
			return chunks
		}
		if c, ok := t.Push(token); ok {
			chunks = append(chunks, c)
		}
	}
	if t.Stopped() {
		return chunks
	}
	if c, ok := t.Finish(); ok {
		chunks = append(chunks, c)
	}
	return chunks
}

func texts(chunks []inference.Chunk) []string {
	list := []string{}
	for _, c := range chunks {
		list = append(list, c.Text)
	}
	return list
}

func TestTextStream(t *testing.T) {
	for _, c := range []struct {
		name   string
		pieces pieces // also the tokens, in order
		stops  []string
		want   []string
	}{
		{"plain", pieces{"a", "bc", " d"}, nil, []string{"a", "bc", " d"}},
		{"a character of two tokens", pieces{"a\xe2", "\x82", "\xacb"}, nil, []string{"a€b"}},
		{"bytes that are no character", pieces{"a\xff", "\xe2\x82", "b"}, nil, []string{"a\uFFFD", "\uFFFD\uFFFDb"}},
		{"incomplete at the end", pieces{"a", "\xf0\x9f"}, nil, []string{"a", "\uFFFD\uFFFD"}},
		{"token without text", pieces{"a", "", "b", ""}, nil, []string{"a", "b", ""}},
		{"stop in a token", pieces{"a", "bSTOPc"}, []string{"STOP"}, []string{"a", "b"}},
		{"stop over tokens", pieces{"a S", "T", "OP"}, []string{"STOP"}, []string{"a "}},
		{"stop begins and does not come", pieces{"a S", "T", "x"}, []string{"STOP"}, []string{"a STx"}},
		{"stop begins again", pieces{"aa", "ab"}, []string{"aab"}, []string{"a"}},
		{"stop begins at the end", pieces{"x", "ST"}, []string{"STOP"}, []string{"x", "ST"}},
		{"first of two stops", pieces{"abcd"}, []string{"cd", "bc"}, []string{"a"}},
		{"stop of characters over tokens", pieces{"a\xe2\x82", "\xac", "€"}, []string{"€€"}, []string{"a"}},
		{"only the stop", pieces{"ST", "OP"}, []string{"STOP"}, []string{""}},
		{"held part leaves before an incomplete character", pieces{"ab", "x\xe2", "\x82\xac"}, []string{"abc"}, []string{"ab", "x€"}},
		{"held part leaves before the rest", pieces{"ab", "xa", "y"}, []string{"abc"}, []string{"ab", "xay"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var tokens []uint32
			for i := range c.pieces {
				tokens = append(tokens, uint32(i))
			}
			if got := texts(stream(c.pieces, c.stops, tokens, 0)); !reflect.DeepEqual(got, c.want) {
				t.Fatalf("%q, want %q", got, c.want)
			}
		})
	}
}

// decode is what the package comment says of bytes and text.
func decode(b string) string { return string([]rune(b)) }

func TestTextStreamProperties(t *testing.T) {
	p := pieces{"a", "b", "ab", "ba ", "", "é", "\xc3", "\xa9", "€", "\xe2", "\x82\xac", "\xff", "🙂", "\xf0\x9f", "\x99\x82b", "aab", "bb"}
	stops := []string{"ab", "aab", "bab", "é", "€€", "b 🙂", "bbb", "abba"}
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32Range(0, uint32(len(p)-1)), 0, 40).Draw(t, "tokens")
		stop := rapid.SliceOfN(rapid.SampledFrom(stops), 0, 3).Draw(t, "stop")
		chunks := stream(p, stop, tokens, 0)

		var raw strings.Builder
		step := 0
		for _, c := range chunks {
			if c.Step != step || !reflect.DeepEqual(c.Tokens, tokens[step:step+len(c.Tokens)]) || len(c.Tokens) == 0 {
				t.Fatalf("chunk %+v after %d tokens", c, step)
			}
			step += len(c.Tokens)
			if !utf8.ValidString(c.Text) {
				t.Fatalf("chunk %q is not UTF-8", c.Text)
			}
		}
		for _, token := range tokens[:step] {
			raw.WriteString(p[token])
		}
		want, stopped := decode(raw.String()), false
		end := len(want)
		for _, s := range stop {
			if i := strings.Index(want, s); i >= 0 {
				end, stopped = min(end, i), true
			}
		}
		want = want[:end]
		if got := strings.Join(texts(chunks), ""); got != want {
			t.Fatalf("text %q, want %q", got, want)
		}
		if !stopped && step != len(tokens) {
			t.Fatalf("%d of %d tokens left though no stop string came", step, len(tokens))
		}
		for cut := range chunks { // text[chunk] is the text of exactly its tokens, whatever came before
			if cut == len(chunks)-1 && stopped {
				break
			}
			var own strings.Builder
			for _, token := range chunks[cut].Tokens {
				own.WriteString(p[token])
			}
			if got := chunks[cut].Text; got != decode(own.String()) {
				t.Fatalf("chunk %d is %q, its tokens are %q", cut, got, own.String())
			}
		}

		n := 0
		for cut, c := range chunks {
			if got := stream(p, stop, tokens, n); !reflect.DeepEqual(got, chunks[cut:]) {
				t.Fatalf("resumed after chunk %d: %q, want %q", cut, texts(got), texts(chunks[cut:]))
			}
			n += len(c.Tokens)
		}
		if stopped && !NewTextStream(p, stop, tokens[:n]).Stopped() {
			t.Fatal("resumed at its end the answer goes on")
		}
	})
}

// Resuming in the middle of a chunk is no use of ours, but must neither lose a stop string nor a token.
func TestTextStreamResumedAnywhere(t *testing.T) {
	p := pieces{"a", "b", "\xc3", "\xa9", "ST", "OP", "x"}
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32Range(0, uint32(len(p)-1)), 1, 20).Draw(t, "tokens")
		cut := rapid.IntRange(0, len(tokens)).Draw(t, "cut")
		stop := []string{"STOP"}
		whole := 0
		for _, c := range stream(p, stop, tokens, 0) {
			whole += len(c.Tokens)
		}
		rest := 0
		for _, c := range stream(p, stop, tokens, min(cut, whole)) {
			rest += len(c.Tokens)
			if !utf8.ValidString(c.Text) || strings.Contains(c.Text, "STOP") {
				t.Fatalf("chunk %q", c.Text)
			}
		}
		if rest != whole-min(cut, whole) {
			t.Fatalf("%d tokens after %d, want %d", rest, cut, whole-cut)
		}
	})
}

package tokenizer_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/gguf/gguftest"
	"github.com/holdfast-ai/holdfast/inference/tokenizer"
)

// tiny is a vocabulary of all bytes, in order, a few merges and control tokens.
func tiny() tokenizer.Vocabulary {
	v := tokenizer.Vocabulary{Pre: "gpt-2"}
	for b := range 256 {
		v.Tokens = append(v.Tokens, spelling(byte(b)))
	}
	for _, m := range []string{"a b", "b c", "ab c", "Ġ a", "a a", "aa aa"} {
		v.Merges = append(v.Merges, m)
		v.Tokens = append(v.Tokens, strings.ReplaceAll(m, " ", ""))
	}
	v.Kinds = slices.Repeat([]tokenizer.Kind{tokenizer.Normal}, len(v.Tokens))
	v.Tokens = append(v.Tokens, "<|im_start|>", "<|im_end|>", "<tool>", "[PAD]")
	v.Kinds = append(v.Kinds, tokenizer.Control, tokenizer.Control, tokenizer.UserDefined, tokenizer.Unused)
	return v
}

// spelling is the letter of a byte in the byte-level alphabet, from its definition.
func spelling(b byte) string {
	shifted := rune(256)
	for c := range 256 {
		printable := c >= 33 && c <= 126 || c >= 161 && c <= 172 || c >= 174
		switch {
		case c == int(b) && printable:
			return string(rune(c))
		case c == int(b):
			return string(shifted)
		case !printable:
			shifted++
		}
	}
	panic("not a byte")
}

func newTiny(tb testing.TB) *tokenizer.Tokenizer {
	tb.Helper()
	t, err := tokenizer.New(tiny())
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func TestTiny(t *testing.T) {
	tok := newTiny(t)
	const ab, bc, abc, Ġa, aa, aaaa, start, end, tool, pad = 256, 257, 258, 259, 260, 261, 262, 263, 264, 265
	for text, want := range map[string][]uint32{
		"":         nil,
		"abc":      {abc}, // a b before b c
		"bc":       {bc},
		"bbc":      {'b', bc},
		"aab":      {'a', ab}, // a b before a a
		"aaa":      {aa, 'a'}, // the leftmost
		"aaaaaaa":  {aaaa, aa, 'a'},
		" a":       {Ġa},
		" abc":     {' ', abc}, // the merge of a b comes first
		"a\xffb":   {'a', 0xff, 'b'},
		"<tool>":   {'<', 't', 'o', 'o', 'l', '>'},
		"\xe6\xbc": {0xe6, 0xbc},
	} {
		if got := tok.Encode(nil, text); !slices.Equal(got, want) {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := tok.Encode([]uint32{7}, "abc"); !slices.Equal(got, []uint32{7, abc}) {
		t.Errorf("appended to 7: %d", got)
	}
	for token, want := range map[uint32]string{'a': "a", 0: "\x00", 0xff: "\xff", abc: "abc", Ġa: " a", start: "", end: "", tool: "<tool>", pad: "", 266: "", 1 << 31: ""} {
		if got := tok.Bytes(token); string(got) != want || cap(got) != len(got) {
			t.Errorf("Bytes(%d) = %q with capacity %d, want %q", token, got, cap(got), want)
		}
		if got := tok.IsEnd(token); got != (token == end) {
			t.Errorf("IsEnd(%d) = %v", token, got)
		}
	}
	if id, ok := tok.Control("<|im_start|>"); id != start || !ok {
		t.Errorf("Control(<|im_start|>) = %d, %v", id, ok)
	}
	for _, name := range []string{"", "abc", "<tool>", "[PAD]", "<|im_sep|>"} {
		if id, ok := tok.Control(name); ok {
			t.Errorf("Control(%s) = %d", name, id)
		}
	}
	if n := tok.Vocabulary(); n != 266 {
		t.Errorf("Vocabulary() = %d", n)
	}
}

func TestSmolLM2(t *testing.T) {
	tok := smollm2(t)
	if n := tok.Vocabulary(); n != 49152 {
		t.Errorf("Vocabulary() = %d", n)
	}
	var ends, unencodable []uint32
	for token := range uint32(49152) {
		if tok.IsEnd(token) {
			ends = append(ends, token)
		}
	}
	for b := range 256 {
		if !tok.Encodable(byte(b)) {
			unencodable = append(unencodable, uint32(b))
		}
	}
	if !slices.Equal(ends, []uint32{0, 2}) {
		t.Errorf("end tokens are %d", ends)
	}
	want := []uint32{4, 6, 0x13, 0x14, 0x16, 0x1d, 0xc0, 0xc1, 0xf1, 0xf2, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff}
	if !slices.Equal(unencodable, want) {
		t.Errorf("bytes without a token are %x, want %x", unencodable, want)
	}
	for name, want := range map[string]uint32{"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<empty_output>": 16} {
		if id, ok := tok.Control(name); id != want || !ok {
			t.Errorf("Control(%s) = %d, %v, want %d", name, id, ok, want)
		}
		if b := tok.Bytes(want); len(b) > 0 {
			t.Errorf("control token %d stands for %q", want, b)
		}
	}
}

// TestLongPieces: a megabyte of one letter, which is one piece, must be a matter of moments.
func TestLongPieces(t *testing.T) {
	tok := smollm2(t)
	checkRoundTrip(t, tok, strings.Repeat("a", 1<<20))
	for _, unit := range []string{"ab", " ", "\n", "1", "!", "é", "漢", "\xff", "'s", "a "} {
		checkRoundTrip(t, tok, strings.Repeat(unit, 1<<17/len(unit)))
	}
}

// TestCutPieces: what exceeds the bound on pieces is cut and nothing is lost.
func TestCutPieces(t *testing.T) {
	tok := newTiny(t)
	checkRoundTrip(t, tok, strings.Repeat("漢", 1<<20/2)+" a")
	got := tok.Encode(nil, "b"+strings.Repeat("a", 1<<20))
	if end := got[len(got)-3:]; !slices.Equal(end, []uint32{260, 'a', 'a'}) {
		t.Errorf("a piece of a megabyte and a byte ends with %d, want aa, a of the first part and a of the second", end)
	}
}

func checkRoundTrip(t interface {
	Helper()
	Fatalf(string, ...any)
}, tok *tokenizer.Tokenizer, text string) {
	t.Helper()
	var want, got []byte
	for i := range len(text) {
		if tok.Encodable(text[i]) {
			want = append(want, text[i])
		}
	}
	for _, token := range tok.Encode(nil, text) {
		b := tok.Bytes(token)
		if len(b) == 0 {
			t.Fatalf("%.100q: the token %d, which stands for nothing, is of the text", text, token)
		}
		got = append(got, b...)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%.100q becomes %.100q", text, got)
	}
}

// TestMergeOrder compares with a reference that merges the lowest rank, leftmost first, in the plainest way. Pieces are
// of both sides of the length where the algorithm changes.
func TestMergeOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := "abcd"
		v := tokenizer.Vocabulary{Pre: "gpt-2"}
		known := map[string]bool{}
		for _, l := range letters {
			v.Tokens = append(v.Tokens, string(l))
			known[string(l)] = true
		}
		for range rapid.IntRange(0, 30).Draw(t, "merges") {
			l := rapid.SampledFrom(v.Tokens).Draw(t, "left")
			r := rapid.SampledFrom(v.Tokens).Draw(t, "right")
			v.Merges = append(v.Merges, l+" "+r)
			if !known[l+r] {
				known[l+r] = true
				v.Tokens = append(v.Tokens, l+r)
			}
		}
		tok, err := tokenizer.New(v)
		if err != nil {
			t.Fatal(err)
		}
		least := rapid.SampledFrom([]int{0, 40, 100}).Draw(t, "least length")
		text := rapid.StringOfN(rapid.SampledFrom([]rune(letters)), least, least+100, -1).Draw(t, "text")
		var got []string
		for _, id := range tok.Encode(nil, text) {
			got = append(got, string(tok.Bytes(id)))
		}
		if want := mergePlainly(v.Merges, text); !slices.Equal(got, want) {
			t.Fatalf("%q with merges %q:\n got %q\nwant %q", text, v.Merges, got, want)
		}
	})
}

func mergePlainly(merges []string, text string) []string {
	parts := strings.Split(text, "")
	for {
		rank, at := len(merges), 0
		for i := range max(0, len(parts)-1) {
			if r := slices.Index(merges, parts[i]+" "+parts[i+1]); r >= 0 && r < rank {
				rank, at = r, i
			}
		}
		if rank == len(merges) {
			return parts
		}
		parts = slices.Concat(parts[:at], []string{parts[at] + parts[at+1]}, parts[at+2:])
	}
}

// TestWholeFirst: Llama 3 takes a piece that is a token as that token, even where merges lead elsewhere.
func TestWholeFirst(t *testing.T) {
	v := tokenizer.Vocabulary{Tokens: []string{"a", "b", "c", "ab", "bc", "abc"}, Merges: []string{"b c", "a b", "ab c"}}
	for pre, want := range map[string][]uint32{"gpt-2": {0, 4}, "llama-bpe": {5}} {
		v.Pre = pre
		tok, err := tokenizer.New(v)
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode(nil, "abc"); !slices.Equal(got, want) {
			t.Errorf("%s: %d, want %d", pre, got, want)
		}
	}
}

func TestConcurrent(t *testing.T) {
	tok := smollm2(t)
	all := readVectors(t)
	done := make(chan error)
	for g := range 4 {
		go func() {
			for i := range all {
				v := all[(i+g*31)%len(all)]
				if got := tok.Encode(nil, v.Text); !slices.Equal(got, v.IDs) {
					done <- fmt.Errorf("%q: %d, want %d", v.Text, got, v.IDs)
					return
				}
			}
			done <- nil
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestNewErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(v *tokenizer.Vocabulary)
		want   error
		text   string
	}{
		"pre-tokenizer":  {func(v *tokenizer.Vocabulary) { v.Pre = "tekken" }, tokenizer.ErrUnsupported, `"tekken" is not known`},
		"empty":          {func(v *tokenizer.Vocabulary) { v.Tokens = nil }, tokenizer.ErrVocabulary, "0 tokens"},
		"kinds":          {func(v *tokenizer.Vocabulary) { v.Kinds = v.Kinds[1:] }, tokenizer.ErrVocabulary, "266 tokens and 265 kinds"},
		"end":            {func(v *tokenizer.Vocabulary) { v.End = []uint32{266} }, tokenizer.ErrVocabulary, "is 266"},
		"merge of one":   {func(v *tokenizer.Vocabulary) { v.Merges[2] = "ab" }, tokenizer.ErrVocabulary, `merge 2, "ab"`},
		"merge of none":  {func(v *tokenizer.Vocabulary) { v.Merges[2] = "漢 a" }, tokenizer.ErrVocabulary, "no token"},
		"merge to none":  {func(v *tokenizer.Vocabulary) { v.Merges[2] = "x y" }, tokenizer.ErrVocabulary, "no token"},
		"merge control":  {func(v *tokenizer.Vocabulary) { v.Merges[2] = "<|im_start|> a" }, tokenizer.ErrVocabulary, "no token"},
		"merge to ctrl.": {func(v *tokenizer.Vocabulary) { v.Tokens[263] = "xy"; v.Merges[2] = "x y" }, tokenizer.ErrVocabulary, "no token"},
	} {
		v := tiny()
		c.change(&v)
		if _, err := tokenizer.New(v); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.want, c.text)
		}
	}
}

// tinyFile is a model file with the vocabulary of tiny. Keys in replaced have other values, or none if nil.
func tinyFile(t *testing.T, replaced map[string]any) *gguf.File {
	v := tiny()
	kinds := make([]int32, len(v.Kinds))
	for i, k := range v.Kinds {
		kinds[i] = int32(k)
	}
	w := gguftest.New()
	for _, p := range []struct {
		key   string
		value any
	}{
		{"model", "gpt2"}, {"pre", "smollm"}, {"tokens", v.Tokens}, {"token_type", kinds}, {"merges", v.Merges},
		{"eos_token_id", uint32(262)}, {"eot_token_id", uint32(0)}, {"eom_token_id", uint32(1)}, {"add_space_prefix", false},
	} {
		value, ok := replaced[p.key]
		if !ok {
			value = p.value
		}
		if value != nil {
			w.Set("tokenizer.ggml."+p.key, value)
		}
	}
	data := w.Bytes()
	f, err := gguf.New(bytes.NewReader(data), int64(len(data)), "tiny.gguf")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFromGGUF(t *testing.T) {
	tok, err := tokenizer.FromGGUF(tinyFile(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode(nil, "abc 1"); !slices.Equal(got, []uint32{258, ' ', '1'}) {
		t.Errorf("%d", got)
	}
	for token, want := range map[uint32]bool{262: true, 0: true, 1: true, 263: true, 264: false} { // 263 by its name
		if got := tok.IsEnd(token); got != want {
			t.Errorf("IsEnd(%d) = %v", token, got)
		}
	}
	if _, err := tokenizer.FromGGUF(tinyFile(t, map[string]any{"add_space_prefix": nil, "eos_token_id": nil, "token_type": nil})); err != nil {
		t.Errorf("without what may be absent: %v", err)
	}
	for key, c := range map[string]struct {
		value any
		want  error
	}{
		"model":            {"llama", tokenizer.ErrUnsupported},
		"pre":              {"unheard-of", tokenizer.ErrUnsupported},
		"tokens":           {[]int32{1}, gguf.ErrType},
		"merges":           {[]string{"ab"}, tokenizer.ErrVocabulary},
		"token_type":       {[]int32{7}, tokenizer.ErrVocabulary},
		"eos_token_id":     {uint64(1 << 40), tokenizer.ErrVocabulary},
		"add_space_prefix": {true, tokenizer.ErrUnsupported},
	} {
		if _, err := tokenizer.FromGGUF(tinyFile(t, map[string]any{key: c.value})); !errors.Is(err, c.want) || !strings.HasPrefix(err.Error(), "tokenizer of tiny.gguf: ") {
			t.Errorf("%s = %v: %v, want %v", key, c.value, err, c.want)
		}
	}
	for key, want := range map[string]error{
		"model": tokenizer.ErrVocabulary, "pre": tokenizer.ErrUnsupported, "tokens": tokenizer.ErrVocabulary, "merges": tokenizer.ErrVocabulary,
	} {
		if _, err := tokenizer.FromGGUF(tinyFile(t, map[string]any{key: nil})); !errors.Is(err, want) || !errors.Is(err, gguf.ErrNotFound) {
			t.Errorf("without %s: %v, want %v and ErrNotFound", key, err, want)
		}
	}
}

// TestDecoder pushes any bytes, in tokens that care about no character.
func TestDecoder(t *testing.T) {
	tok := newTiny(t)
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rapid.OneOf(
			rapid.String(),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 5), func(b []byte) string { return string(b) }),
			rapid.SampledFrom([]string{"👩‍👩‍👧", "\xf0\x9f", "\xe6\xbc", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80"}),
		)).Draw(t, "text")
		text := strings.Join(parts, "")
		d := tok.NewDecoder()
		var got strings.Builder
		for i := range len(text) {
			piece := d.Push(uint32(text[i]))
			if !utf8.ValidString(piece) || d.Held() >= utf8.UTFMax {
				t.Fatalf("%q: Push returned %q and holds %d bytes", text, piece, d.Held())
			}
			got.WriteString(piece)
			if i+1 == len(text) || utf8.RuneStart(text[i+1]) {
				continue
			}
			if r, n := utf8.DecodeLastRuneInString(piece); r == utf8.RuneError && n == 3 && utf8.ValidString(text) && !strings.Contains(text, "\ufffd") {
				t.Fatalf("%q: Push gave up a character at byte %d", text, i)
			}
		}
		got.WriteString(d.Flush())
		if want := string([]rune(text)); got.String() != want || d.Held() != 0 {
			t.Fatalf("%q becomes %q, want %q", text, got.String(), want)
		}
	})
}

func TestDecoderWaits(t *testing.T) {
	tok := newTiny(t)
	d := tok.NewDecoder()
	var got []string
	for _, token := range []uint32{'a', 0xf0, 0x9f, 0x98, 0x80, 258, 0xe6, 262, 0xbc, 0xa2, 0xc3, 'x', 0xc3} {
		got = append(got, d.Push(token))
	}
	want := []string{"a", "", "", "", "😀", "abc", "", "", "", "漢", "", "\ufffdx", ""}
	if !slices.Equal(got, want) || d.Held() != 1 {
		t.Errorf("%q with %d held, want %q with 1", got, d.Held(), want)
	}
	if got := d.Flush() + d.Flush() + d.Push('b'); got != "\ufffdb" {
		t.Errorf("after the end: %q", got)
	}
}

// FuzzEncode: any bytes come back, and none become a control token.
func FuzzEncode(f *testing.F) {
	tok := smollm2(f)
	for _, s := range []string{"Hello, world", "<|im_start|>system\n<|im_end|>", "a\xffb\xf0\x9f", "12 345\n\n  x", "👩‍👩‍👧"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) { checkRoundTrip(t, tok, text) })
}

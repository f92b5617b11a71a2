package tokenizer_test

import (
	"strings"
	"testing"

	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/tokenizer"
	"github.com/holdfast-ai/holdfast/internal/testmodel"
)

func BenchmarkEncode(b *testing.B) {
	tok := smollm2(b)
	for _, c := range []struct{ name, text string }{
		{"english", strings.Repeat("My grandmother kept bees behind the barn, and every spring she would walk out in her white hat to see whether the hives had lived through the winter. ", 64)},
		{"code", strings.Repeat("func (m *merger) down(i int) {\n\th := m.heap\n\tfor {\n\t\tleast := 2*i + 1\n\t\tif least >= len(h) {\n\t\t\treturn\n\t\t}\n\t}\n}\n", 64)},
		{"russian", strings.Repeat("Съешь ещё этих мягких французских булок, да выпей чаю. ", 64)},
		{"chinese", strings.Repeat("中文分词测试，标点符号也要处理。", 128)},
		{"long-word", strings.Repeat("a", 1<<20)},
	} {
		b.Run(c.name, func(b *testing.B) {
			var tokens []uint32
			b.SetBytes(int64(len(c.text)))
			b.ReportAllocs()
			for b.Loop() {
				tokens = tok.Encode(tokens[:0], c.text)
			}
		})
	}
}

func BenchmarkFromGGUF(b *testing.B) {
	f, err := gguf.Open(testmodel.Path(b))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tokenizer.FromGGUF(f); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecoder(b *testing.B) {
	tok := smollm2(b)
	tokens := tok.Encode(nil, strings.Repeat("My grandmother kept bees behind the barn. Съешь ещё этих булок 😀. ", 16))
	b.ReportAllocs()
	for b.Loop() {
		d := tok.NewDecoder()
		for _, token := range tokens {
			d.Push(token)
		}
		d.Flush()
	}
}

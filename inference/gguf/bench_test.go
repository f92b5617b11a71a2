package gguf_test

import (
	"testing"

	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/gguf/gguftest"
	"github.com/holdfast-ai/holdfast/internal/testmodel"
)

func BenchmarkOpen(b *testing.B) {
	path := testmodel.Path(b)
	b.ReportAllocs()
	for b.Loop() {
		f, err := gguf.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

// BenchmarkRow counts the bytes of the floats.
func BenchmarkRow(b *testing.B) {
	const columns = 1536
	for _, typ := range dequantizable {
		b.Run(typ.String(), func(b *testing.B) {
			elements, size := typ.Block()
			f := open(b, gguftest.New().Tensor("x", typ, make([]byte, columns/elements*size), columns).Bytes())
			row := make([]float32, columns)
			b.SetBytes(4 * columns)
			b.ReportAllocs()
			for b.Loop() {
				if err := f.Tensors()[0].Row(0, row); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package tokenizer_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/tokenizer"
	"github.com/holdfast-ai/holdfast/internal/testmodel"
)

var _ inference.Tokenizer = (*tokenizer.Tokenizer)(nil)

var smollm2Once = sync.OnceValues(func() (*tokenizer.Tokenizer, error) {
	path, err := testmodel.Find()
	if err != nil {
		return nil, err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return tokenizer.FromGGUF(f)
})

// smollm2 returns the tokenizer of the real model.
func smollm2(tb testing.TB) *tokenizer.Tokenizer {
	tb.Helper()
	t, err := smollm2Once()
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

type vector struct {
	Text string           `json:"text"`
	IDs  []uint32         `json:"ids"`
	Cuts map[string][]int `json:"cuts"`
}

func readVectors(tb testing.TB) (all []vector) {
	tb.Helper()
	data, err := os.ReadFile("testdata/vectors.jsonl")
	if err != nil {
		tb.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var v vector
		if err := d.Decode(&v); err == io.EOF {
			return all
		} else if err != nil {
			tb.Fatal(err)
		}
		all = append(all, v)
	}
}

// TestVectors compares with two other implementations, on the real vocabulary.
func TestVectors(t *testing.T) {
	tok := smollm2(t)
	all := readVectors(t)
	if len(all) < 500 {
		t.Fatalf("there are only %d vectors", len(all))
	}
	for _, v := range all {
		if got := tok.Encode(nil, v.Text); !slices.Equal(got, v.IDs) {
			t.Errorf("%q:\n got %d\nwant %d", v.Text, got, v.IDs)
		}
	}
}

package wasm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/gguf/gguftest"
)

// TestLoadRefusesClearly loads folders that cannot work.
func TestLoadRefusesClearly(t *testing.T) {
	file := func(data []byte) (*inference.Manifest, string) {
		dir, m := t.TempDir(), realManifest()
		sum := sha256.Sum256(data)
		m.Files = []inference.File{{Path: "weights.gguf", Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}}
		if err := os.WriteFile(filepath.Join(dir, "weights.gguf"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		return m, dir
	}
	sound := newTinyModel(true).bytes()
	for _, c := range []struct {
		name string
		load func() (*inference.Manifest, string)
		want string // part of the message
	}{
		{"no file", func() (*inference.Manifest, string) { return realManifest(), t.TempDir() }, "no such file"},
		{"no GGUF in the manifest", func() (*inference.Manifest, string) {
			m := realManifest()
			m.Files[0].Path = "model.onnx"
			return m, t.TempDir()
		}, "names no GGUF file"},
		{"two of them", func() (*inference.Manifest, string) {
			m := realManifest()
			m.Files = append(m.Files, m.Files[0])
			return m, t.TempDir()
		}, "more than one GGUF file"},
		{"no digest", func() (*inference.Manifest, string) {
			m := realManifest()
			m.Files[0].SHA256 = "beef"
			return m, t.TempDir()
		}, "64 hexadecimal digits"},
		{"unknown template", func() (*inference.Manifest, string) {
			m := realManifest()
			m.Family = "nobody"
			return m, t.TempDir()
		}, "nobody"},
		{"not GGUF", func() (*inference.Manifest, string) { return file([]byte("not a model at all, sorry")) }, "GGUF"},
		{"cut off", func() (*inference.Manifest, string) { return file(sound[:len(sound)/2]) }, "weights.gguf"},
		{"no tokenizer", func() (*inference.Manifest, string) { return file(sound) }, "tokenizer"},
		{"empty GGUF", func() (*inference.Manifest, string) { return file(gguftest.New().Bytes()) }, "tokenizer"},
	} {
		m, dir := c.load()
		_, err := NewRuntime(Options{}).Load(t.Context(), m, dir, t.TempDir(), nil)
		if !errors.Is(err, inference.ErrModelUnavailable) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want it to say %q", c.name, err, c.want)
		}
	}
}

// TestUnsupportedModelsAreRefused changes a sound model until it is one that the guest cannot compute.
func TestUnsupportedModelsAreRefused(t *testing.T) {
	set := func(key string, value any) func(*tinyModel) {
		return func(m *tinyModel) { m.metadata[key] = value }
	}
	tensor := func(name string, dims ...uint64) func(*tinyModel) {
		return func(m *tinyModel) {
			n := uint64(1)
			for _, d := range dims {
				n *= d
			}
			m.dims[name], m.data[name] = dims, make([]float32, n)
		}
	}
	value := func(name string, v float64) func(*tinyModel) {
		return func(m *tinyModel) { m.data[name][17] = float32(v) }
	}
	for _, c := range []struct {
		name   string
		change func(*tinyModel)
		want   string
	}{
		{"another architecture", set("general.architecture", "gpt2"), `"gpt2"`},
		{"no architecture", func(m *tinyModel) { delete(m.metadata, "general.architecture") }, "architecture"},
		{"no width", func(m *tinyModel) { delete(m.metadata, "llama.embedding_length") }, "llama.embedding_length"},
		{"a width that is text", set("llama.embedding_length", "wide"), "llama.embedding_length"},
		{"a width of no tile", set("llama.embedding_length", uint32(60)), "multiple of 32"},
		{"a huge width", set("llama.embedding_length", uint32(math.MaxUint32)), "at most"},
		{"no heads", set("llama.attention.head_count", uint32(0)), "heads"},
		{"heads that do not share", set("llama.attention.head_count_kv", uint32(3)), "share"},
		{"small heads", set("llama.attention.key_length", uint32(16)), "head size"},
		{"other values than keys", set("llama.attention.value_length", uint32(64)), "value_length"},
		{"half rotary", set("llama.rope.dimension_count", uint32(16)), "dimension_count"},
		{"scaled rotary", set("llama.rope.scaling.type", "yarn"), "yarn"},
		{"rotary base zero", set("llama.rope.freq_base", float32(0)), "rotary base"},
		{"experts", set("llama.expert_count", uint32(8)), "expert_count"},
		{"too many layers", set("llama.block_count", uint32(5000)), "layers"},
		{"more layers than tensors", set("llama.block_count", uint32(4)), "blk.3."},
		{"biases", tensor("blk.0.attn_q.bias", 128), "attn_q.bias"},
		{"no embedding", func(m *tinyModel) { delete(m.data, "token_embd.weight") }, "vocabulary"},
		{"a missing matrix", func(m *tinyModel) { delete(m.data, "blk.1.ffn_up.weight") }, "blk.1.ffn_up.weight"},
		{"a missing norm", func(m *tinyModel) { delete(m.data, "output_norm.weight") }, "output_norm.weight"},
		{"a matrix too short", tensor("blk.1.ffn_up.weight", 64, 95), "dimensions"},
		{"a matrix too long", tensor("blk.1.ffn_up.weight", 64, 97), "dimensions"},
		{"a matrix too narrow", tensor("blk.1.ffn_up.weight", 32, 96), "dimensions"},
		{"a norm too long", tensor("blk.1.ffn_norm.weight", 65), "dimensions"},
		{"a weight that is infinite", value("blk.2.ffn_down.weight", math.Inf(-1)), "blk.2.ffn_down.weight is not finite"},
		{"a weight that is no number", value("blk.2.ffn_down.weight", math.NaN()), "not finite"},
		{"a norm that is no number", value("blk.2.ffn_norm.weight", math.NaN()), "not finite"},
	} {
		m := newTinyModel(true)
		c.change(m)
		_, err := OpenStepper(t.Context(), m.source(t, t.TempDir()), Options{})
		if !errors.Is(err, inference.ErrModelUnavailable) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want it to say %q", c.name, err, c.want)
		}
	}
}

func TestOptions(t *testing.T) {
	m := newTinyModel(true)
	for _, o := range []Options{{Slots: -1}, {Slots: 5000}, {Context: -1}, {MaxRows: -1}, {MaxRows: 1 << 20}, {MaxRows: 4, MaxLogits: 5}} {
		if _, err := OpenStepper(t.Context(), m.source(t, t.TempDir()), o); !errors.Is(err, inference.ErrInvalidRequest) {
			t.Errorf("%+v: got %v", o, err)
		}
	}
	s := openTiny(t, m, t.TempDir(), Options{})
	if s.Slots() != 8 || s.MaxRows() != 64 || s.MaxLogits() != 8 || s.Context() != 512 {
		t.Errorf("%d slots, %d rows, %d logits, %d positions; the model was trained for 512", s.Slots(), s.MaxRows(), s.MaxLogits(), s.Context())
	}
}

// TestTooLargeForWebAssembly asks for more than 32 bits can address.
func TestTooLargeForWebAssembly(t *testing.T) {
	m := newTinyModel(true)
	m.metadata["llama.context_length"] = uint32(1 << 20)
	_, err := OpenStepper(t.Context(), m.source(t, t.TempDir()), Options{Slots: 4096, Context: 1 << 20})
	if !errors.Is(err, inference.ErrModelUnavailable) || !strings.Contains(err.Error(), "fewer slots") {
		t.Errorf("got %v", err)
	}
}

// TestActivationLimit wants the largest limit for which no int32 sum can overflow.
func TestActivationLimit(t *testing.T) {
	for _, c := range []struct {
		columns int
		limit   float32
	}{{64, math.MaxInt16}, {516 - 516%32, math.MaxInt16}, {1024, math.MaxInt32 / (127 * 1024)}, {8192, math.MaxInt32 / (127 * 8192)}} {
		row := make([]float32, c.columns)
		for i := range row {
			row[i] = 3 * float32(1-i%2*2) // every weight is quantised to 127 or -127
		}
		data := gguftest.New().Tensor("w", gguf.F32, gguftest.Floats(row...), uint64(c.columns), 1).Bytes()
		f, err := gguf.New(bytes.NewReader(data), int64(len(data)), "w.gguf")
		if err != nil {
			t.Fatal(err)
		}
		w := &weightLayout{}
		w.matrix(c.columns, part{"w", 1})
		limit, err := packMatrix(f, w.matrices[0], make([]byte, w.size))
		if err != nil || limit != c.limit {
			t.Errorf("%d columns: limit %g (%v), want %g", c.columns, limit, err, c.limit)
		}
	}
}

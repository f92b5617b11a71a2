package wasm

import (
	"fmt"
	"math"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/gguf"
)

// shape is what of a model's architecture decides sizes and arithmetic.
type shape struct {
	Dim, Hidden, Layers, Heads, KVHeads, HeadSize, Vocabulary int

	Tied           bool // the output matrix is the embedding
	TrainedContext int
	NormEpsilon    float32
	RopeBase       float32
}

const (
	architecture = "llama"
	laneColumns  = 32  // columns of a tile; every vector length is a multiple of it
	maxHeadSize  = 256 // of the guest's static buffers
	maxDimension = 1 << 20
	maxLayers    = 1 << 10
)

// readShape reads the shape of a Llama-family model and refuses what the guest cannot compute.
func readShape(f *gguf.File) (shape, error) {
	arch, err := f.String("general.architecture")
	if err != nil {
		return shape{}, unsupported("its architecture is unknown: %w", err)
	}
	if arch != architecture {
		return shape{}, unsupported("its architecture is %q; this runtime computes %q", arch, architecture)
	}
	r := shapeReader{file: f}
	s := shape{
		Dim: r.required("embedding_length"), Hidden: r.required("feed_forward_length"),
		Layers: r.required("block_count"), Heads: r.required("attention.head_count"),
		Tied: dims(f, "output.weight") == nil,
	}
	if d := dims(f, "token_embd.weight"); len(d) == 2 {
		s.Vocabulary = int(min(d[1], maxDimension+1))
	}
	s.KVHeads = r.optional("attention.head_count_kv", s.Heads)
	s.HeadSize = r.optional("attention.key_length", s.Dim/max(s.Heads, 1))
	s.TrainedContext = r.optional("context_length", math.MaxInt32)
	s.NormEpsilon = r.float("attention.layer_norm_rms_epsilon", 1e-5)
	s.RopeBase = r.float("rope.freq_base", 10000)
	r.only("attention.value_length", s.HeadSize)
	r.only("rope.dimension_count", s.HeadSize)
	r.only("expert_count", 0)
	if v, err := f.String(architecture + ".rope.scaling.type"); err == nil && v != "none" {
		r.fail("it scales rotary positions (%s)", v)
	}
	for _, name := range []string{"rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"} {
		if dims(f, name) != nil {
			r.fail("it has the tensor %s", name)
		}
	}
	if r.err != nil {
		return s, r.err
	}
	return s, s.validate()
}

// dims returns a tensor's dimensions, that of a row first, or nil if there is no such tensor.
func dims(f *gguf.File, name string) []int64 {
	t, err := f.Tensor(name)
	if err != nil {
		return nil
	}
	return t.Dims()
}

func (s shape) validate() error {
	for _, v := range []struct {
		name                 string
		value, multiple, max int
	}{
		{"embedding length", s.Dim, laneColumns, maxDimension}, {"feed-forward length", s.Hidden, laneColumns, maxDimension},
		{"head size", s.HeadSize, laneColumns, maxHeadSize}, {"number of layers", s.Layers, 1, maxLayers},
		{"number of heads", s.Heads, 1, maxDimension}, {"number of key-value heads", s.KVHeads, 1, maxDimension},
		{"vocabulary", s.Vocabulary, 1, maxDimension}, {"context length", s.TrainedContext, 1, math.MaxInt32},
	} {
		if v.value < 1 || v.value > v.max || v.value%v.multiple != 0 {
			return unsupported("its %s is %d; it must be a multiple of %d and at most %d", v.name, v.value, v.multiple, v.max)
		}
	}
	switch {
	case s.Heads%s.KVHeads != 0:
		return unsupported("%d heads do not share %d key-value heads evenly", s.Heads, s.KVHeads)
	case !(s.NormEpsilon > 0 && s.NormEpsilon < 1) || !(s.RopeBase > 1 && isFinite(s.RopeBase)):
		return unsupported("norm epsilon %g or rotary base %g is out of range", s.NormEpsilon, s.RopeBase)
	}
	return nil
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: this model is not supported: %w", inference.ErrModelUnavailable, fmt.Errorf(format, args...))
}

// shapeReader reads metadata of the architecture and keeps the first error.
type shapeReader struct {
	file *gguf.File
	err  error
}

func (r *shapeReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = unsupported(format, args...)
	}
}

func (r *shapeReader) required(key string) int {
	v, err := r.file.Uint(architecture + "." + key)
	if err != nil {
		r.fail("%w", err)
	}
	return int(min(v, math.MaxInt32))
}

func (r *shapeReader) optional(key string, def int) int {
	if !r.file.Has(architecture + "." + key) {
		return def
	}
	return r.required(key)
}

// only refuses every value of key but the one that the guest computes.
func (r *shapeReader) only(key string, want int) {
	if v := r.optional(key, want); v != want {
		r.fail("%s.%s is %d; only %d can be computed", architecture, key, v, want)
	}
}

func (r *shapeReader) float(key string, def float32) float32 {
	if !r.file.Has(architecture + "." + key) {
		return def
	}
	v, err := r.file.Float(architecture + "." + key)
	if err != nil {
		r.fail("%w", err)
	}
	return float32(v)
}

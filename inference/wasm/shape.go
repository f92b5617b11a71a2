package wasm

import (
	"fmt"
	"math"

	"github.com/holdfast-ai/holdfast/inference"
)

// shape is what of a model's architecture decides sizes and arithmetic.
type shape struct {
	Dim, Hidden, Layers, Heads, KVHeads, HeadSize, Vocabulary int

	Tied           bool // the output matrix is the embedding
	TrainedContext int
	NormEpsilon    float32
	RopeBase       float32
}

// metadata is the part of a model file's metadata that shapes are read from.
type metadata interface {
	String(key string) (string, bool)
	Uint(key string) (uint64, bool)
	Float(key string) (float64, bool)
}

// tensors gives access to a model file's weights.
type tensors interface {
	// Dims returns a tensor's dimensions, the fastest first, or nil if there is no such tensor.
	Dims(name string) []uint64
	// Row writes row number row of a tensor with len(dst) columns. Safe for concurrent use.
	Row(name string, row int, dst []float32) error
}

const (
	architecture = "llama"
	laneColumns  = 32  // columns of a tile; every vector length is a multiple of it
	maxHeadSize  = 256 // of the guest's static buffers
	maxDimension = 1 << 20
)

// readShape reads the shape of a Llama-family model and refuses what the guest cannot compute.
func readShape(md metadata, ts tensors) (shape, error) {
	var s shape
	arch, _ := md.String("general.architecture")
	if arch != architecture {
		return s, unsupported("its architecture is %q; this runtime computes %q", arch, architecture)
	}
	dims := ts.Dims("token_embd.weight")
	if len(dims) != 2 {
		return s, unsupported("it has no token embedding matrix")
	}
	s.Vocabulary = clampInt(dims[1])
	s.Tied = ts.Dims("output.weight") == nil
	r := shapeReader{md: md}
	s.Dim = r.required("embedding_length")
	s.Hidden = r.required("feed_forward_length")
	s.Layers = r.required("block_count")
	s.Heads = r.required("attention.head_count")
	if r.err != nil {
		return s, r.err
	}
	if s.Heads < 1 || s.Dim < 1 {
		return s, unsupported("it has %d heads and width %d", s.Heads, s.Dim)
	}
	s.KVHeads = r.optional("attention.head_count_kv", s.Heads)
	s.HeadSize = r.optional("attention.key_length", s.Dim/s.Heads)
	s.TrainedContext = r.optional("context_length", math.MaxInt32)
	s.NormEpsilon = r.float("attention.layer_norm_rms_epsilon", 1e-5)
	s.RopeBase = r.float("rope.freq_base", 10000)
	if v := r.optional("attention.value_length", s.HeadSize); v != s.HeadSize {
		return s, unsupported("its keys have %d dimensions and its values %d", s.HeadSize, v)
	}
	if v := r.optional("rope.dimension_count", s.HeadSize); v != s.HeadSize {
		return s, unsupported("only %d of a head's %d dimensions rotate", v, s.HeadSize)
	}
	if v := r.optional("expert_count", 0); v != 0 {
		return s, unsupported("it is a mixture of %d experts", v)
	}
	if v, ok := md.String(architecture + ".rope.scaling.type"); ok && v != "none" {
		return s, unsupported("it scales rotary positions (%s)", v)
	}
	for _, name := range []string{"rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"} {
		if ts.Dims(name) != nil {
			return s, unsupported("it has the tensor %s", name)
		}
	}
	return s, s.validate()
}

func (s shape) validate() error {
	for _, v := range []struct {
		name            string
		value, multiple int
	}{
		{"embedding_length", s.Dim, laneColumns}, {"feed_forward_length", s.Hidden, laneColumns},
		{"head size", s.HeadSize, laneColumns}, {"block_count", s.Layers, 1}, {"head_count", s.Heads, 1},
		{"head_count_kv", s.KVHeads, 1}, {"vocabulary", s.Vocabulary, 1}, {"context_length", s.TrainedContext, 1},
	} {
		if v.value < 1 || v.value > maxDimension && v.name != "context_length" || v.value%v.multiple != 0 {
			return unsupported("%s is %d; it must be a positive multiple of %d", v.name, v.value, v.multiple)
		}
	}
	switch {
	case s.Heads%s.KVHeads != 0:
		return unsupported("%d heads do not share %d key-value heads evenly", s.Heads, s.KVHeads)
	case s.HeadSize > maxHeadSize:
		return unsupported("head size %d is above %d", s.HeadSize, maxHeadSize)
	case !(s.NormEpsilon > 0) || !(s.RopeBase > 1) || math.IsInf(float64(s.RopeBase), 0):
		return unsupported("norm epsilon %g or rotary base %g is out of range", s.NormEpsilon, s.RopeBase)
	}
	return nil
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: this model is not supported: %s", inference.ErrModelUnavailable, fmt.Sprintf(format, args...))
}

func clampInt(v uint64) int { return int(min(v, math.MaxInt32)) }

type shapeReader struct {
	md  metadata
	err error
}

func (r *shapeReader) required(key string) int {
	v, ok := r.md.Uint(architecture + "." + key)
	if !ok && r.err == nil {
		r.err = unsupported("its metadata lacks %s.%s", architecture, key)
	}
	return clampInt(v)
}

func (r *shapeReader) optional(key string, def int) int {
	if v, ok := r.md.Uint(architecture + "." + key); ok {
		return clampInt(v)
	}
	return def
}

func (r *shapeReader) float(key string, def float32) float32 {
	if v, ok := r.md.Float(architecture + "." + key); ok {
		return float32(v)
	}
	return def
}

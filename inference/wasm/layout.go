package wasm

import (
	"fmt"

	"github.com/holdfast-ai/holdfast/inference"
)

const (
	tileRows   = 4
	cacheLine  = 64
	pageBytes  = 64 << 10 // of WebAssembly
	hugePage   = 2 << 20
	kvBlock    = 32       // positions
	kvAlign    = 4 << 10  // resident pages of the KV cache belong to it alone
	weightBase = hugePage // the guest's own stack and data end below
	// maxMemory leaves out the last page: a 32-bit length cannot say 4 GiB.
	maxMemory = 1<<32 - pageBytes
)

// matrixLayout says where in the weights a matrix lies. Offsets are from the start of the weights.
type matrixLayout struct {
	parts   []part // tensors stacked to make it
	columns int
	rows    int // padded to tileRows
	weights uint64
	scales  uint64
}

func (m matrixLayout) bytes() int64 { return int64(m.columns) * int64(m.rows) }

type part struct {
	tensor string
	rows   int
}

type vectorLayout struct {
	tensor string
	length int
	offset uint64
}

// weightLayout is the plan of an image's payload: a function of the shape alone.
type weightLayout struct {
	matrices []matrixLayout // embedding, output unless tied, then four a layer
	vectors  []vectorLayout // final norm, then two a layer
	limits   uint64         // float32 a matrix: its activation limit
	size     uint64
}

func (w *weightLayout) matrix(columns int, parts ...part) {
	rows := 0
	for _, p := range parts {
		rows += p.rows
	}
	m := matrixLayout{parts: parts, columns: columns, rows: roundUp(rows, tileRows)}
	m.weights = w.reserve(uint64(m.columns) * uint64(m.rows))
	m.scales = w.reserve(uint64(m.rows) * 4)
	w.matrices = append(w.matrices, m)
}

func (w *weightLayout) vector(length int, tensor string) {
	w.vectors = append(w.vectors, vectorLayout{tensor, length, w.reserve(uint64(length) * 4)})
}

func (w *weightLayout) reserve(n uint64) uint64 {
	at := w.size
	w.size = roundUp(at+n, cacheLine)
	return at
}

func layoutWeights(s shape) *weightLayout {
	w := &weightLayout{}
	queries, keys := s.Heads*s.HeadSize, s.KVHeads*s.HeadSize
	w.matrix(s.Dim, part{"token_embd.weight", s.Vocabulary})
	if !s.Tied {
		w.matrix(s.Dim, part{"output.weight", s.Vocabulary})
	}
	w.vector(s.Dim, "output_norm.weight")
	for l := range s.Layers {
		name := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", l, part) }
		w.matrix(s.Dim, part{name("attn_q"), queries}, part{name("attn_k"), keys}, part{name("attn_v"), keys})
		w.matrix(queries, part{name("attn_output"), s.Dim})
		w.matrix(s.Dim, part{name("ffn_gate"), s.Hidden}, part{name("ffn_up"), s.Hidden})
		w.matrix(s.Hidden, part{name("ffn_down"), s.Dim})
		w.vector(s.Dim, name("attn_norm"))
		w.vector(s.Dim, name("ffn_norm"))
	}
	w.limits = w.reserve(uint64(len(w.matrices)) * 4)
	return w
}

// memoryPlan is the guest's whole linear memory: stack and data, weights, tables and scratch, key-value cache. All
// addresses are the guest's.
type memoryPlan struct {
	weights                               *weightLayout
	layers, ropeCos, ropeSin              uint64
	rows, residual, wide, qkv, gateUp     uint64
	scores, activations, logits, kv       uint64
	wideStride                            int
	logitsStride                          int    // floats
	kvBlockBytes, kvSlotBytes, totalBytes uint64 // totalBytes is a multiple of pageBytes
}

// planMemory lays everything out, or says that it does not fit. Sizes are computed in 64 bits from bounded factors.
func planMemory(s shape, o Options) (*memoryPlan, error) {
	p := &memoryPlan{weights: layoutWeights(s)}
	at := roundUp(weightBase+p.weights.size, cacheLine)
	reserve := func(n int) uint64 {
		a := at
		at = roundUp(at+uint64(n), cacheLine)
		return a
	}
	positions := roundUp(o.Context, kvBlock)
	p.wideStride = max(s.Dim, s.Hidden, s.Heads*s.HeadSize)
	p.logitsStride = roundUp(s.Vocabulary, tileRows)
	p.layers = reserve(s.Layers * guestLayerBytes)
	p.ropeCos = reserve(o.Context * s.HeadSize / 2 * 4)
	p.ropeSin = reserve(o.Context * s.HeadSize / 2 * 4)
	p.rows = reserve(o.MaxRows * guestRowBytes)
	p.residual = reserve(o.MaxRows * s.Dim * 4)
	p.wide = reserve(o.MaxRows * p.wideStride * 4)
	p.qkv = reserve(o.MaxRows * (s.Heads + 2*s.KVHeads) * s.HeadSize * 4)
	p.gateUp = reserve(o.MaxRows * 2 * s.Hidden * 4)
	p.scores = reserve(positions * 4)
	p.activations = reserve(o.MaxRows * (p.wideStride*2 + cacheLine))
	p.logits = reserve(o.MaxLogits * p.logitsStride * 4)
	p.kv = roundUp(at, kvAlign)
	p.kvBlockBytes = uint64(s.Layers) * uint64(s.KVHeads) * kvBlock * uint64(s.HeadSize*4+8)
	p.kvSlotBytes = p.kvBlockBytes * uint64(positions/kvBlock)
	p.totalBytes = roundUp(p.kv+p.kvSlotBytes*uint64(o.Slots), pageBytes)
	if p.weights.size > maxMemory || p.totalBytes > maxMemory {
		return nil, fmt.Errorf("%w: %d MiB of weights and %d slots of %d positions need %d MiB, WebAssembly can address 4095: use fewer slots, a shorter context or a smaller model",
			inference.ErrModelUnavailable, p.weights.size>>20, o.Slots, o.Context, p.totalBytes>>20)
	}
	return p, nil
}

func roundUp[T int | uint64](v, multiple T) T { return (v + multiple - 1) / multiple * multiple }

package wasm

import (
	"encoding/binary"
	"math"
)

// These mirror the structs of guest/llama.c field by field; every field is four bytes wide. The stepper compares the
// sizes with the guest's own before it trusts them.

const (
	abiVersion      = 1
	guestRowBytes   = 16
	guestLayerBytes = 4*20 + 2*4
)

type guestMatrix struct {
	Columns, Rows     uint32
	Weights, RowScale uint32
	ActivationLimit   float32
}

type guestLayer struct {
	QKV, AttentionOut, GateUp, Down guestMatrix
	AttentionNorm, FFNNorm          uint32
}

type guestConfig struct {
	Dim, Hidden, Layers, Heads, KVHeads, HeadSize, Vocabulary, Context uint32

	UnitsPerYield             uint32
	NormEpsilon               float32
	ScoreLimit                float32
	Embedding, Output         guestMatrix
	Layer                     uint32
	FinalNorm                 uint32
	RopeCos, RopeSin          uint32
	KV                        uint32
	KVSlotBytes, KVBlockBytes uint32
	Rows                      uint32
	Residual                  uint32
	Wide                      uint32
	WideStride                uint32
	QKV                       uint32
	GateUp                    uint32
	Scores                    uint32
	Activations               uint32
	Logits                    uint32
}

// unitsPerYield is how much the guest computes between two chances for the garbage collector and for a stop: a unit is
// one multiply-add, and the stream of the weights counts as three rows. Four million take a quarter of a millisecond,
// a whole one when memory is slow.
const unitsPerYield = 4 << 20

// guestTables returns the guest's config and its layer table for weights already in memory.
func guestTables(s shape, o Options, p *memoryPlan, mem []byte) (config, layers []byte) {
	w := p.weights
	weights := mem[weightBase : weightBase+w.size]
	matrix := func(i int) guestMatrix {
		m := w.matrices[i]
		limit := limitOf(w, weights, i)
		return guestMatrix{uint32(m.columns), uint32(m.rows), uint32(weightBase + m.weights), uint32(weightBase + m.scales), limit}
	}
	vector := func(i int) uint32 { return uint32(weightBase + w.vectors[i].offset) }
	output, first := 0, 1
	if !s.Tied {
		output, first = 1, 2
	}
	for l := range s.Layers {
		i := first + 4*l
		layers = mustAppend(layers, guestLayer{
			QKV: matrix(i), AttentionOut: matrix(i + 1), GateUp: matrix(i + 2), Down: matrix(i + 3),
			AttentionNorm: vector(1 + 2*l), FFNNorm: vector(2 + 2*l),
		})
	}
	config = mustAppend(nil, guestConfig{
		Dim: uint32(s.Dim), Hidden: uint32(s.Hidden), Layers: uint32(s.Layers), Heads: uint32(s.Heads),
		KVHeads: uint32(s.KVHeads), HeadSize: uint32(s.HeadSize), Vocabulary: uint32(s.Vocabulary),
		Context: uint32(o.Context), UnitsPerYield: unitsPerYield, NormEpsilon: s.NormEpsilon,
		ScoreLimit: float32(math.Floor(math.Sqrt(math.MaxInt32 / float64(s.HeadSize)))),
		Embedding:  matrix(0), Output: matrix(output), Layer: uint32(p.layers), FinalNorm: vector(0),
		RopeCos: uint32(p.ropeCos), RopeSin: uint32(p.ropeSin), KV: uint32(p.kv),
		KVSlotBytes: uint32(p.kvSlotBytes), KVBlockBytes: uint32(p.kvBlockBytes), Rows: uint32(p.rows),
		Residual: uint32(p.residual), Wide: uint32(p.wide), WideStride: uint32(p.wideStride), QKV: uint32(p.qkv),
		GateUp: uint32(p.gateUp), Scores: uint32(p.scores), Activations: uint32(p.activations), Logits: uint32(p.logits),
	})
	return config, layers
}

// mustAppend appends the bytes of a struct of fixed-size fields.
func mustAppend(dst []byte, v any) []byte {
	dst, err := binary.Append(dst, binary.LittleEndian, v)
	if err != nil {
		panic(err) // the type has a field without a fixed size: a mistake in this file
	}
	return dst
}

// fillRope writes the rotary tables: the angle of pair i at position p is p * base^(-2i/headSize).
func fillRope(s shape, o Options, p *memoryPlan, mem []byte) {
	half := s.HeadSize / 2
	for i := range half {
		frequency := math.Pow(float64(s.RopeBase), -2*float64(i)/float64(s.HeadSize))
		for position := range o.Context {
			sin, cos := math.Sincos(float64(position) * frequency)
			at := uint64(position*half+i) * 4
			putFloat(mem[p.ropeCos+at:], float32(cos))
			putFloat(mem[p.ropeSin+at:], float32(sin))
		}
	}
}

func putFloat(b []byte, v float32) { binary.LittleEndian.PutUint32(b, math.Float32bits(v)) }

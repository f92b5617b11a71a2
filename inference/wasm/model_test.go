package wasm

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/gguf/gguftest"
)

// tinyModel is a random Llama-family model held in memory: small enough to compute exactly in a test, with every
// feature of the guest (grouped heads, several cache blocks, a vocabulary that needs padding).
type tinyModel struct {
	metadata map[string]any
	dims     map[string][]uint64
	data     map[string][]float32
}

// file returns m as a model file.
func (m *tinyModel) file(t testing.TB) *gguf.File {
	t.Helper()
	bytes := m.bytes()
	f, err := gguf.New(strings.NewReader(string(bytes)), int64(len(bytes)), "tiny.gguf")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (m *tinyModel) bytes() []byte {
	w := gguftest.New()
	for _, key := range slices.Sorted(maps.Keys(m.metadata)) {
		w.Set(key, m.metadata[key])
	}
	for _, name := range slices.Sorted(maps.Keys(m.data)) {
		w.Tensor(name, gguf.F32, gguftest.Floats(m.data[name]...), m.dims[name]...)
	}
	return w.Bytes()
}

func (m *tinyModel) random(rng *rand.Rand, name string, spread float64, dims ...uint64) {
	n := uint64(1)
	for _, d := range dims {
		n *= d
	}
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(rng.NormFloat64() * spread)
		if len(dims) == 1 {
			data[i] += 1 // a norm
		}
	}
	if len(dims) == 2 { // rounded to what int8 can say, so that only the guest's arithmetic is inexact
		q := make([]int8, dims[0])
		for row := range slices.Chunk(data, len(q)) {
			scale, _ := quantiseRow(row, q)
			for i := range row {
				row[i] = float32(q[i]) * scale
			}
		}
	}
	m.dims[name], m.data[name] = dims, data
}

// tinyVocabulary is not a multiple of a tile's rows, and its tiles are not even in number.
const tinyVocabulary = 73

func newTinyModel(tied bool) *tinyModel {
	const dim, hidden, layers, heads, kvHeads, headSize, vocabulary = 64, 96, 3, 4, 2, 32, tinyVocabulary
	m := &tinyModel{
		metadata: map[string]any{
			"general.architecture": "llama", "llama.embedding_length": uint32(dim),
			"llama.feed_forward_length": uint32(hidden), "llama.block_count": uint32(layers),
			"llama.attention.head_count": uint32(heads), "llama.attention.head_count_kv": uint32(kvHeads),
			"llama.attention.key_length": uint32(headSize), "llama.context_length": uint32(512),
			"llama.attention.layer_norm_rms_epsilon": float32(1e-5), "llama.rope.freq_base": float32(10000),
		},
		dims: map[string][]uint64{}, data: map[string][]float32{},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	m.random(rng, "token_embd.weight", 1, dim, vocabulary)
	if !tied {
		m.random(rng, "output.weight", 0.2, dim, vocabulary)
	}
	m.random(rng, "output_norm.weight", 0.1, dim)
	for l := range layers {
		name := func(s string) string { return fmt.Sprintf("blk.%d.%s.weight", l, s) }
		m.random(rng, name("attn_q"), 0.2, dim, heads*headSize)
		m.random(rng, name("attn_k"), 0.2, dim, kvHeads*headSize)
		m.random(rng, name("attn_v"), 0.2, dim, kvHeads*headSize)
		m.random(rng, name("attn_output"), 0.1, heads*headSize, dim)
		m.random(rng, name("ffn_gate"), 0.2, dim, hidden)
		m.random(rng, name("ffn_up"), 0.2, dim, hidden)
		m.random(rng, name("ffn_down"), 0.1, hidden, dim)
		m.random(rng, name("attn_norm"), 0.1, dim)
		m.random(rng, name("ffn_norm"), 0.1, dim)
	}
	return m
}

func (m *tinyModel) source(t testing.TB, cache string) Source {
	return Source{File: m.file(t), SHA256: sha256.Sum256(m.bytes()), Cache: cache}
}

// openTiny opens a stepper over m; it is closed with the test.
func openTiny(t testing.TB, m *tinyModel, cache string, o Options) *Stepper {
	t.Helper()
	s, err := OpenStepper(t.Context(), m.source(t, cache), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// forward computes the logits after each token in float64 with the exact weights.
func (m *tinyModel) forward(t testing.TB, tokens []uint32) [][]float64 {
	t.Helper()
	s, err := readShape(m.file(t))
	if err != nil {
		t.Fatal(err)
	}
	x := make([][]float64, len(tokens))
	for i, token := range tokens {
		x[i] = m.row("token_embd.weight", int(token))
	}
	for l := range s.Layers {
		name := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", l, part) }
		m.attention(s, name, x)
		for i := range x {
			h := rms(x[i], m.row(name("ffn_norm"), 0), s.NormEpsilon)
			gate, up := m.times(name("ffn_gate"), h), m.times(name("ffn_up"), h)
			for j := range gate {
				gate[j] *= up[j] / (1 + math.Exp(-gate[j]))
			}
			add(x[i], m.times(name("ffn_down"), gate))
		}
	}
	output := "output.weight"
	if s.Tied {
		output = "token_embd.weight"
	}
	logits := make([][]float64, len(x))
	for i := range x {
		logits[i] = m.times(output, rms(x[i], m.row("output_norm.weight", 0), s.NormEpsilon))
	}
	return logits
}

func (m *tinyModel) attention(s shape, name func(string) string, x [][]float64) {
	var keys, values [][]float64
	for i := range x {
		h := rms(x[i], m.row(name("attn_norm"), 0), s.NormEpsilon)
		q, k, v := m.times(name("attn_q"), h), m.times(name("attn_k"), h), m.times(name("attn_v"), h)
		turn(s, q, i)
		turn(s, k, i)
		keys, values = append(keys, k), append(values, v)
		out := make([]float64, len(q))
		for head := range s.Heads {
			kv := head * s.KVHeads / s.Heads * s.HeadSize
			query := q[head*s.HeadSize:][:s.HeadSize]
			weights, sum := make([]float64, i+1), 0.0
			for p := range weights {
				weights[p] = math.Exp(dot(query, keys[p][kv:]) / math.Sqrt(float64(s.HeadSize)))
				sum += weights[p]
			}
			for p, w := range weights {
				for d := range query {
					out[head*s.HeadSize+d] += w / sum * values[p][kv+d]
				}
			}
		}
		add(x[i], m.times(name("attn_output"), out))
	}
}

func (m *tinyModel) row(name string, r int) []float64 {
	n := int(m.dims[name][0])
	out := make([]float64, n)
	for i, v := range m.data[name][r*n:][:n] {
		out[i] = float64(v)
	}
	return out
}

func (m *tinyModel) times(name string, x []float64) []float64 {
	out := make([]float64, m.dims[name][1])
	for r := range out {
		out[r] = dot(x, m.row(name, r))
	}
	return out
}

func turn(s shape, heads []float64, position int) {
	for i := 0; i < len(heads); i += 2 {
		angle := float64(position) * math.Pow(float64(s.RopeBase), -float64(i%s.HeadSize)/float64(s.HeadSize))
		sin, cos := math.Sincos(angle)
		heads[i], heads[i+1] = heads[i]*cos-heads[i+1]*sin, heads[i]*sin+heads[i+1]*cos
	}
}

func rms(x, weight []float64, epsilon float32) []float64 {
	k := 1 / math.Sqrt(dot(x, x)/float64(len(x))+float64(epsilon))
	out := make([]float64, len(x))
	for i := range x {
		out[i] = x[i] * k * weight[i]
	}
	return out
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func add(x, y []float64) {
	for i := range x {
		x[i] += y[i]
	}
}

// randomTokens returns n tokens of a vocabulary, the same ones every time.
func randomTokens(n, vocabulary int) []uint32 {
	rng := rand.New(rand.NewPCG(3, 4))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(rng.IntN(vocabulary))
	}
	return tokens
}

// rowsOf returns rows of one slot that want logits.
func rowsOf(slot, first int, tokens []uint32) []inference.Row {
	rows := make([]inference.Row, len(tokens))
	for i, token := range tokens {
		rows[i] = inference.Row{Token: token, Slot: uint32(slot), Position: uint32(first + i), Logits: true}
	}
	return rows
}

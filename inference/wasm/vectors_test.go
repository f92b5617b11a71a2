package wasm

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
)

// vectors are a model's recorded predictions over a text: exact float32 logits and llama.cpp's choices. How they were
// made and what the fields mean is in testdata/record/README.md.
type vectors struct {
	ModelSHA256 string `json:"model_sha256"`
	Positions   int    `json:"positions"`
	Vocabulary  int    `json:"vocabulary"`
	Top         int    `json:"top"`
	Tail        int    `json:"tail"`

	tokens       []uint32
	logSumExp    []float32 // exact
	targetLogit  []float32 // exact, of the next token
	llamaTop     []uint32  // AVX2 build
	llamaTop512  []uint32  // AVX-512 build
	llamaLogProb []float32 // AVX2 build, of the next token
	topTokens    []uint32  // Top a position, the most probable first
	topLogits    []float32
	tailTokens   []uint32 // Tail a position, drawn from all others in proportion to their exact probability
	tailLogits   []float32
}

func readVectors(path string) (*vectors, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	head, rest, _ := bytes.Cut(data, []byte("\n"))
	v := &vectors{}
	if err := json.Unmarshal(head, v); err != nil {
		return nil, err
	}
	r := bytes.NewReader(rest)
	n := v.Positions
	v.tokens, v.logSumExp, v.targetLogit = make([]uint32, n), make([]float32, n), make([]float32, n-1)
	v.llamaTop, v.llamaTop512, v.llamaLogProb = make([]uint32, n), make([]uint32, n), make([]float32, n-1)
	v.topTokens, v.topLogits = make([]uint32, n*v.Top), make([]float32, n*v.Top)
	v.tailTokens, v.tailLogits = make([]uint32, n*v.Tail), make([]float32, n*v.Tail)
	for _, field := range []any{v.tokens, v.logSumExp, v.targetLogit, v.llamaTop, v.llamaTop512, v.llamaLogProb,
		v.topTokens, v.topLogits, v.tailTokens, v.tailLogits} {
		if err := binary.Read(r, binary.LittleEndian, field); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
	}
	if r.Len() != 0 {
		return nil, fmt.Errorf("%s has %d bytes too many", path, r.Len())
	}
	return v, nil
}

// agreement sums up how near a model's logits are to the recorded ones.
type agreement struct {
	positions             int
	kl                    float64 // sum
	logLoss, exactLogLoss float64 // sums
	targets               int
	exactTop, llamaTop    int     // positions with the same most probable token
	widestTie             float64 // largest exact gap between the two most probable tokens where llama.cpp differs
}

// add compares the logits after position i.
func (a *agreement) add(v *vectors, i int, logits []float32) error {
	lse, best := 0.0, 0
	for j, l := range logits {
		if l > logits[best] {
			best = j
		}
		lse += math.Exp(float64(l - logits[0]))
	}
	lse = math.Log(lse) + float64(logits[0])
	exactLSE := float64(v.logSumExp[i])
	ratio := func(token uint32, exact float32) (p, logRatio float64) {
		logP := float64(exact) - exactLSE
		return math.Exp(logP), logP - (float64(logits[token]) - lse)
	}
	rest := 1.0
	gap := map[uint32]float64{}
	for j := i * v.Top; j < (i+1)*v.Top; j++ {
		p, r := ratio(v.topTokens[j], v.topLogits[j])
		a.kl += p * r
		rest -= p
		gap[v.topTokens[j]] = float64(v.topLogits[i*v.Top] - v.topLogits[j])
	}
	for j := i * v.Tail; j < (i+1)*v.Tail; j++ {
		_, r := ratio(v.tailTokens[j], v.tailLogits[j])
		a.kl += max(rest, 0) * r / float64(v.Tail)
	}
	if i+1 < v.Positions {
		a.targets++
		a.logLoss += lse - float64(logits[v.tokens[i+1]])
		a.exactLogLoss += exactLSE - float64(v.targetLogit[i])
	}
	a.positions++
	if uint32(best) == v.topTokens[i*v.Top] {
		a.exactTop++
	}
	if uint32(best) == v.llamaTop[i] {
		a.llamaTop++
		return nil
	}
	ours, ok := gap[uint32(best)]
	theirs, ok2 := gap[v.llamaTop[i]]
	if !ok || !ok2 {
		return fmt.Errorf("position %d: tokens %d and %d are not both among the %d most probable", i, best, v.llamaTop[i], v.Top)
	}
	a.widestTie = max(a.widestTie, math.Abs(ours-theirs))
	return nil
}

func (a *agreement) meanKL() float64          { return a.kl / float64(a.positions) }
func (a *agreement) perplexity() float64      { return math.Exp(a.logLoss / float64(a.targets)) }
func (a *agreement) exactPerplexity() float64 { return math.Exp(a.exactLogLoss / float64(a.targets)) }

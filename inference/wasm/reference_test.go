package wasm

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/inferencetest"
	"github.com/holdfast-ai/holdfast/inference/tokenizer"
	"github.com/holdfast-ai/holdfast/internal/testmodel"
)

// realCache is where all tests of one run keep what is derived from the real model.
var realCache = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "holdfast-wasm-") })

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := realCache(); err == nil {
		os.RemoveAll(dir)
	}
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// openReal opens the real model; it is closed with the test.
func openReal(t testing.TB, o Options) *Stepper {
	t.Helper()
	f, err := gguf.Open(testmodel.Path(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cache, err := realCache()
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenStepper(t.Context(), Source{File: f, SHA256: realDigest(t), Cache: cache}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func realDigest(t testing.TB) [32]byte {
	t.Helper()
	_, digest, err := modelFile(realManifest())
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func realManifest() *inference.Manifest {
	return &inference.Manifest{
		Name: testmodel.Name, Version: "1", License: "Apache-2.0", Task: "generate", Family: "smollm2", Runtime: Name,
		Files: []inference.File{{Path: testmodel.File, Size: testmodel.Size, SHA256: testmodel.SHA256}},
	}
}

// Bounds of agreement. Between them and what is measured is room for other compilers, not for other arithmetic.
const (
	maxKL             = 0.006 // mean, nats
	maxPerplexityOff  = 0.01  // relative
	minLlamaAgreement = 0.90
	// nearTie is the gap, in exact logits, below which the order of two tokens is a matter of rounding: at this
	// gap the odds are 0.7 to 0.3. The two builds of llama.cpp differ from each other over gaps of up to 0.5.
	nearTie = 0.85
)

// TestAgainstReferences teacher-forces the recorded text and compares with an exact float32 forward and with llama.cpp.
func TestAgainstReferences(t *testing.T) {
	v := realVectors(t)
	s := openReal(t, Options{Slots: 1, Context: 1024, MaxLogits: 64})
	var a agreement
	for i := 0; i < v.Positions; i += 64 {
		for j, logits := range mustStep(t, s, rowsOf(0, i, v.tokens[i:min(i+64, v.Positions)])) {
			if err := a.add(v, i+j, logits); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("KL %.5f, perplexity %.3f (exact %.3f), top-1 as exact %d, as llama.cpp %d of %d, widest tie %.3f",
		a.meanKL(), a.perplexity(), a.exactPerplexity(), a.exactTop, a.llamaTop, a.positions, a.widestTie)
	if v.Positions < 512 {
		t.Errorf("only %d positions were recorded", v.Positions)
	}
	if kl := a.meanKL(); !(kl <= maxKL) {
		t.Errorf("mean KL to the exact model is %.5f, above %g", kl, maxKL)
	}
	if off := math.Abs(a.perplexity()/a.exactPerplexity() - 1); !(off <= maxPerplexityOff) {
		t.Errorf("perplexity %.3f is off by %.2f %% from %.3f", a.perplexity(), 100*off, a.exactPerplexity())
	}
	if share := float64(a.llamaTop) / float64(a.positions); share < minLlamaAgreement {
		t.Errorf("llama.cpp has the same most probable token in %.1f %%, below %g", 100*share, 100*minLlamaAgreement)
	}
	if a.widestTie > nearTie {
		t.Errorf("llama.cpp differs over a gap of %.3f, which is no near tie", a.widestTie)
	}
}

func realVectors(t testing.TB) *vectors {
	t.Helper()
	v, err := readVectors("testdata/smollm2-135m.vectors")
	if err != nil {
		t.Fatal(err)
	}
	if v.ModelSHA256 != testmodel.SHA256 {
		t.Fatalf("the vectors are of the model %s, not %s", v.ModelSHA256, testmodel.SHA256)
	}
	return v
}

// TestTokensAreThoseOfLlamaCpp compares our tokenizer with the tokens that llama.cpp made of the recorded text.
func TestTokensAreThoseOfLlamaCpp(t *testing.T) {
	text, err := os.ReadFile("testdata/record/text.txt")
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(testmodel.Path(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := tok.Encode(nil, string(text)), realVectors(t).tokens; !slices.Equal(got, want) {
		t.Errorf("%d tokens, llama.cpp makes %d:\n%v\n%v", len(got), len(want), got, want)
	}
}

func TestRealRowsDoNotDependOnTheirBatch(t *testing.T) {
	s := openReal(t, Options{Slots: 3, Context: 128, MaxLogits: 64})
	tokens := realVectors(t).tokens[:70]
	alone := forced(t, s, 0, 1, tokens)
	equalLogits(t, "in chunks of 7", alone, forced(t, s, 1, 7, tokens))
	equalLogits(t, "in chunks of 64", alone, forced(t, s, 2, 64, tokens))
}

func TestConformance(t *testing.T) {
	cache, err := realCache()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(testmodel.Path(t))
	inferencetest.Run(t, inferencetest.Config{
		Open: func(t *testing.T) inferencetest.Model {
			m, err := NewRuntime(Options{Context: 512}).Load(t.Context(), realManifest(), dir, cache, nil)
			if err != nil {
				t.Fatal(err)
			}
			return m.(inferencetest.Model)
		},
		Ask:    "Tell me a story about a lighthouse.",
		Tokens: 12, // the model is real, and the suite asks often
	})
}

// TestGuestYieldsOften counts how often the guest lets the garbage collector in: what it computes between two yields
// bounds how long the whole program can be held up, and how late a stop is heard.
func TestGuestYieldsOften(t *testing.T) {
	s := openReal(t, Options{Slots: 1})
	tokens := randomTokens(65, 40000)
	weights := 0
	for _, m := range s.plan.weights.matrices {
		weights += m.columns * m.rows
	}
	for _, rows := range [][]inference.Row{rowsOf(0, 0, tokens[:64]), rowsOf(0, 64, tokens[64:])} {
		for i := range rows[:len(rows)-1] {
			rows[i].Logits = false
		}
		const enough = 1 << 40
		ctx := &countdown{t.Context(), enough, nil}
		if _, err := s.Step(ctx, rows); err != nil {
			t.Fatal(err)
		}
		// The output matrix is computed for one row only, and counts so.
		embedding := s.plan.weights.matrices[0].columns * s.plan.weights.matrices[0].rows
		units := (weights-embedding)*(len(rows)+3) + embedding*4
		overshoot := tileRows * s.shape.Hidden * (len(rows) + 3) // of the last piece before a yield
		if yields, want := enough-ctx.left, units/(unitsPerYield+overshoot); yields < want {
			t.Errorf("%d rows: %d yields, want %d", len(rows), yields, want)
		}
	}
}

package scheduler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/inference"
)

// The known answers that the authors of Philox publish with their code (kat_vectors, philox4x32 10).
func TestPhiloxKnownAnswers(t *testing.T) {
	const all = 0xffffffff
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{all, all, all, all}, [2]uint32{all, all}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(c.counter, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

func TestUniformDependsOnSeedTurnAndStep(t *testing.T) {
	seen := map[float64]string{}
	for _, seed := range []uint64{0, 1, 1 << 40} {
		for _, turn := range []uint64{0, 1, 1 << 40} {
			for _, step := range []uint64{0, 1, 2, 1 << 40} {
				u, name := uniform(seed, turn, step), fmt.Sprint(seed, turn, step)
				if u < 0 || u >= 1 {
					t.Errorf("%s: %v", name, u)
				}
				if other, ok := seen[u]; ok {
					t.Errorf("%s and %s give the same number", name, other)
				}
				seen[u] = name
			}
		}
	}
}

func TestWeightIsTheExponential(t *testing.T) {
	s := newSampler(1)
	for d := 0.0; d < bins; d += 0.00731 {
		want := math.Exp(-d / binsPerNat)
		if got := s.weightOf(d, int(d)); math.Abs(got-want) > 1e-9*want {
			t.Fatalf("exp(-%v) = %v, want %v", d/binsPerNat, got, want)
		}
	}
}

// naive returns the probability of each token, by sorting everything.
func naive(logits []float32, p *inference.Sampling, topP float64) []float64 {
	top := slices.Max(logits)
	ids := make([]int, len(logits))
	weights := make([]float64, len(logits))
	for i, x := range logits {
		ids[i] = i
		weights[i] = math.Exp(-(float64(top) - float64(x)) / float64(p.Temperature))
	}
	sort.SliceStable(ids, func(i, j int) bool { return logits[ids[i]] > logits[ids[j]] })
	if p.TopK > 0 && p.TopK < len(ids) {
		ids = ids[:p.TopK]
	}
	total := func() (sum float64) {
		for _, i := range ids {
			sum += weights[i]
		}
		return
	}
	if topP > 0 && topP < 1 {
		part, need := 0.0, total()*topP
		for n, i := range ids {
			if part += weights[i]; part >= need {
				ids = ids[:n+1]
				break
			}
		}
	}
	probabilities, sum := make([]float64, len(logits)), total()
	for _, i := range ids {
		probabilities[i] = weights[i] / sum
	}
	return probabilities
}

// TestSampleEqualsSortingEverything draws at evenly spaced numbers: a token's share of them is its probability.
func TestSampleEqualsSortingEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 2, 3, 10, 100, 200, 300}).Draw(t, "vocabulary")
		spread := rapid.SampledFrom([]float64{0, 0.01, 1, 10, 100}).Draw(t, "spread")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "rng"), 0))
		logits := make([]float32, n)
		for i := range logits {
			logits[i] = float32(rng.NormFloat64() * spread)
		}
		if n > 3 {
			logits[1], logits[2] = logits[0], logits[0] // ties
		}
		p := inference.Sampling{
			Temperature: rapid.SampledFrom([]float32{1e-6, 0.1, 0.7, 1, 2, 5}).Draw(t, "temperature"),
			TopK:        rapid.SampledFrom([]int{0, 2, 5, 40, 150, 299, 1000}).Draw(t, "top-k"),
			TopP:        rapid.SampledFrom([]float32{0, 0.01, 0.5, 0.9, 0.999, 1}).Draw(t, "top-p"),
		}
		s := newSampler(n)
		for i := range s.mass { // what an earlier call might leave
			s.mass[i], s.count[i] = 1e9, 1e9
		}
		if _, err := s.sample(logits, &p, 0, 0); err != nil {
			t.Fatal(err)
		}
		const draws = 3000
		got := make([]float64, n)
		for i := range draws {
			got[s.draw((float64(i)+0.5)/draws)]++
		}
		var want []float64
		for _, nudge := range []float64{0, -1e-7, 1e-7} { // rounding may decide where top-p cuts
			want = naive(logits, &p, float64(p.TopP)+nudge)
			if closeTo(got, want, draws) {
				return
			}
		}
		t.Fatalf("drawn %v of %d, want shares %v", got, draws, want)
	})
}

func closeTo(got, want []float64, draws float64) bool {
	for i := range got {
		if math.Abs(got[i]-want[i]*draws) > 1.01 {
			return false
		}
	}
	return true
}

func TestGreedyTakesTheFirstOfTheLargest(t *testing.T) {
	got, err := newSampler(5).sample([]float32{-3, 2, 7, 7, 1}, &inference.Sampling{}, 0, 0)
	if got != 2 || err != nil {
		t.Fatalf("token %d, %v; want 2", got, err)
	}
}

func TestFrequenciesFollowTheWeights(t *testing.T) {
	logits := []float32{float32(math.Log(0.5)), float32(math.Log(0.3)), float32(math.Log(0.2))}
	s, p := newSampler(3), inference.Sampling{Temperature: 1, Seed: 1}
	var count [3]float64
	const n = 100_000
	for step := range uint64(n) {
		token, err := s.sample(logits, &p, 0, step)
		if err != nil {
			t.Fatal(err)
		}
		count[token]++
	}
	for i, want := range []float64{0.5, 0.3, 0.2} {
		if got := count[i] / n; math.Abs(got-want) > 0.006 { // four standard deviations; the seed is fixed
			t.Errorf("token %d: %.4f, want %.4f", i, got, want)
		}
	}
}

func TestLogitsThatAreNotFiniteAreAnError(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, logits := range [][]float32{{nan, 1}, {1, nan, 2}, {inf, 1}, {1, -inf}, {-inf, -inf}, {}} {
		for _, temperature := range []float32{0, 1} {
			if _, err := newSampler(len(logits)).sample(logits, &inference.Sampling{Temperature: temperature}, 0, 0); err == nil {
				t.Errorf("%v at temperature %v: no error", logits, temperature)
			}
		}
	}
}

// typical returns logits of the size and shape of a language model's.
func typical(n int) []float32 {
	rng := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, n)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64()*3 - 5)
	}
	for range 40 {
		logits[rng.IntN(n)] = float32(10 + rng.NormFloat64()*4)
	}
	return logits
}

var samplings = []struct {
	name string
	p    inference.Sampling
}{
	{"greedy", inference.Sampling{}},
	{"temperature", inference.Sampling{Temperature: 0.8}},
	{"topk", inference.Sampling{Temperature: 0.8, TopK: 40}},
	{"topk1000", inference.Sampling{Temperature: 0.8, TopK: 1000}},
	{"topp", inference.Sampling{Temperature: 0.8, TopP: 0.95}},
	{"topk+topp", inference.Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95}},
}

func TestSampleAllocatesNothing(t *testing.T) {
	logits := typical(2000)
	s := newSampler(len(logits))
	for _, c := range samplings {
		step := uint64(0)
		if n := testing.AllocsPerRun(50, func() {
			step++
			if _, err := s.sample(logits, &c.p, 1, step); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations a token", c.name, n)
		}
	}
}

func BenchmarkSample(b *testing.B) {
	logits := typical(49152)
	for _, c := range samplings {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			s := newSampler(len(logits))
			for i := range b.N {
				if _, err := s.sample(logits, &c.p, 1, uint64(i)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package scheduler

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/holdfast-ai/holdfast/inference"
)

// errLogits is the model's error, not the request's.
var errLogits = errors.New("the model returned logits that are not finite; its weights may be damaged")

// Candidates are put into buckets by how far their logit, divided by the temperature, lies below the largest:
// bucketsPerNat buckets for each factor of e. The last bucket holds everything farther away.
const (
	bucketsPerNat = 16
	buckets       = 32 * bucketsPerNat
)

// sampler chooses tokens from logits. It holds scratch space for one vocabulary and is reused for every token, so
// that choosing allocates nothing. Not safe for concurrent use.
type sampler struct {
	candidates []candidate // in the order of ids
	border     []candidate // of the bucket that has to be sorted
	count      [buckets]int
	mass       [buckets]float64
}

type candidate struct {
	id     uint32
	bucket uint32
	weight float64 // exp((logit-max)/temperature), so at most 1
}

func newSampler(vocabulary int) *sampler {
	return &sampler{candidates: make([]candidate, 0, vocabulary)}
}

// sample returns the token for the given step. Equal arguments give equal tokens on every machine: exp and sums are
// computed in one fixed way.
func (s *sampler) sample(logits []float32, p *inference.Sampling, turn, step uint64) (uint32, error) {
	top, err := argmax(logits)
	if err != nil || p.Temperature == 0 || p.TopK == 1 {
		return top, err
	}
	s.weigh(logits, logits[top], p.Temperature)
	if p.TopK > 0 && p.TopK < len(s.candidates) {
		s.keepCount(p.TopK)
	}
	if p.TopP > 0 && p.TopP < 1 {
		s.keepMass(float64(p.TopP))
	}
	return s.draw(uniform(p.Seed, turn, step)), nil
}

// argmax returns the first of the largest logits.
func argmax(logits []float32) (uint32, error) {
	if len(logits) == 0 {
		return 0, errLogits
	}
	best, at := logits[0], 0
	var poison float32 // becomes NaN by the first NaN or infinity
	for i, x := range logits {
		poison += x * 0
		if x > best {
			best, at = x, i
		}
	}
	if poison != 0 {
		return 0, errLogits
	}
	return uint32(at), nil
}

// weigh makes every token a candidate.
func (s *sampler) weigh(logits []float32, top float32, temperature float32) {
	s.candidates = s.candidates[:len(logits)]
	scale := 1 / float64(temperature)
	for i, x := range logits {
		below := float64((float64(top) - float64(x)) * scale)
		b := uint32(buckets - 1)
		if below < float64(buckets)/bucketsPerNat {
			b = uint32(below * bucketsPerNat)
		}
		s.candidates[i] = candidate{id: uint32(i), bucket: b, weight: expNeg(below)}
	}
}

// keepCount keeps the k heaviest candidates; among equals the lower ids.
func (s *sampler) keepCount(k int) {
	clear(s.count[:])
	for i := range s.candidates {
		s.count[s.candidates[i].bucket]++
	}
	b := 0
	for k > s.count[b] {
		k -= s.count[b]
		b++
	}
	s.keep(uint32(b), func(c []candidate) int { return k })
}

// keepMass keeps the heaviest candidates that together have at least the share p of the weight; never none.
func (s *sampler) keepMass(p float64) {
	clear(s.mass[:])
	total := 0.0
	for i := range s.candidates {
		s.mass[s.candidates[i].bucket] += s.candidates[i].weight
	}
	last := 0
	for b, m := range s.mass {
		total += m
		if m > 0 {
			last = b
		}
	}
	need := float64(total * p)
	b := 0
	for b < last && need > s.mass[b] {
		need -= s.mass[b]
		b++
	}
	s.keep(uint32(b), func(sorted []candidate) int {
		n := 0
		for sum := 0.0; n < len(sorted) && sum < need; n++ {
			sum += sorted[n].weight
		}
		return n
	})
}

// keep drops the candidates behind bucket b and, of those in b, all but the first cut(sorted). Only that one bucket
// is sorted.
func (s *sampler) keep(b uint32, cut func(sorted []candidate) int) {
	s.border = s.border[:0]
	for i := range s.candidates {
		if s.candidates[i].bucket == b {
			s.border = append(s.border, s.candidates[i])
		}
	}
	slices.SortFunc(s.border, heavierFirst)
	n := cut(s.border)
	var limit candidate // the first of the border that is dropped
	if n < len(s.border) {
		limit = s.border[n]
	}
	kept := s.candidates[:0]
	for _, c := range s.candidates {
		if c.bucket < b || c.bucket == b && (n == len(s.border) || heavierFirst(c, limit) < 0) {
			kept = append(kept, c)
		}
	}
	s.candidates = kept
}

func heavierFirst(a, b candidate) int {
	if c := cmp.Compare(b.weight, a.weight); c != 0 {
		return c
	}
	return cmp.Compare(a.id, b.id)
}

// draw picks the candidate at the share u of the weight. The largest logit weighs 1, so the total is never 0.
func (s *sampler) draw(u float64) uint32 {
	total := 0.0
	for i := range s.candidates {
		total += s.candidates[i].weight
	}
	left := float64(u * total)
	chosen := s.candidates[0].id
	for i := range s.candidates {
		if w := s.candidates[i].weight; w > 0 {
			chosen = s.candidates[i].id
			if left < w {
				break
			}
			left -= w
		}
	}
	return chosen
}

// expNeg returns exp(-x) for x ≥ 0 within 1e-9 of its value. It is several times faster than math.Exp and, since the
// conversions forbid fused multiply-add, gives the same bits on every architecture.
func expNeg(x float64) float64 {
	if x > 700 {
		return 0
	}
	const ln2 = math.Ln2
	n := math.Floor(float64(x*(1/ln2)) + 0.5)
	r := float64(n*ln2) - x // -x = r - n·ln2, |r| ≤ ln2/2
	p := 1.0 / 40320
	for _, c := range [...]float64{1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1, 1} {
		p = float64(p*r) + c
	}
	return p * math.Float64frombits(uint64(1023-int64(n))<<52)
}

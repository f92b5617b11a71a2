package scheduler

import (
	"cmp"
	"errors"
	"slices"

	"github.com/holdfast-ai/holdfast/inference"
)

// errLogits is the model's error, not the request's.
var errLogits = errors.New("the model returned logits that are not finite; its weights may be damaged")

// Tokens are binned by how far their logit, divided by the temperature, lies below the largest: binsPerNat bins for
// each factor of e. Those that are more than e^-32 times less likely than the likeliest are in none and never chosen.
const (
	binsPerNat = 16
	bins       = 32 * binsPerNat

	fewTokens = 128 // up to this top-k a heap is faster than bins
)

// sampler chooses tokens from logits. Instead of sorting a vocabulary for every token it bins it in one pass; top-k
// and top-p then take whole bins, and sort only the one in which their border lies. All space is reused, so that
// choosing allocates nothing. Not safe for concurrent use.
type sampler struct {
	expBin [bins]float64 // exp(-bin/binsPerNat)

	bin    []uint16  // of each token; bins if it is in none
	weight []float64 // exp((logit-max)/temperature) of each token that has a bin up to last
	count  [bins + 1]int
	mass   [bins]float64 // of each bin
	last   int           // bin that tokens may come from
	border []candidate   // if sorted, those of the last bin that remain, the heaviest first
	sorted bool
}

type candidate struct {
	id     uint32
	weight float64 // in keepFew the logit, at first
}

// heavierFirst is the order of candidates: by weight, equals by id.
func heavierFirst(a, b candidate) int {
	if c := cmp.Compare(b.weight, a.weight); c != 0 {
		return c
	}
	return cmp.Compare(a.id, b.id)
}

func newSampler(vocabulary int) *sampler {
	s := &sampler{bin: make([]uint16, vocabulary), weight: make([]float64, vocabulary), border: make([]candidate, 0, vocabulary)}
	const expOneBin = 0.93941306281347578611 // exp(-1/binsPerNat)
	s.expBin[0] = 1
	for b := 1; b < bins; b++ {
		s.expBin[b] = s.expBin[b-1] * expOneBin
	}
	return s
}

// sample returns the token for the given step; logits are those of the whole vocabulary. Equal arguments give equal
// tokens on every machine: conversions forbid fused multiply-add, sums are made in one order, and the exponential
// is our own.
func (s *sampler) sample(logits []float32, p *inference.Sampling, turn, step uint64) (uint32, error) {
	top, err := argmax(logits)
	if err != nil || p.Temperature == 0 || p.TopK == 1 {
		return top, err
	}
	s.last, s.sorted = bins-1, false
	scale := 1 / float64(p.Temperature)
	if p.TopK > 0 && p.TopK <= min(fewTokens, len(logits)) {
		s.keepFew(logits, logits[top], scale, p.TopK)
	} else if p.TopK > 0 && p.TopK < len(logits) {
		s.count = [bins + 1]int{}
		s.eachBin(logits, logits[top], scale)
		s.keepCount(logits, logits[top], scale, p.TopK)
	} else {
		s.mass = [bins]float64{}
		s.weighAll(logits, logits[top], scale)
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

// below is how far x lies below top, in bins.
func below(x, top float32, scale float64) float64 {
	return float64((float64(top)-float64(x))*scale) * binsPerNat
}

// weightOf is exp(-d/binsPerNat) within 1e-9 of its value: the bin's own from a table, times a short series for what
// is left.
func (s *sampler) weightOf(d float64, bin int) float64 {
	r := (float64(bin) - d) * (1.0 / binsPerNat) // -1/binsPerNat < r ≤ 0
	p := 1.0/24 + float64(r*(1.0/120))
	p = 1.0/6 + float64(p*r)
	p = 1.0/2 + float64(p*r)
	p = 1 + float64(p*r)
	p = 1 + float64(p*r)
	return float64(p * s.expBin[bin])
}

// weighAll bins and weighs every token.
func (s *sampler) weighAll(logits []float32, top float32, scale float64) {
	bin, weight := s.bin[:len(logits)], s.weight[:len(logits)]
	for i, x := range logits {
		d := below(x, top, scale)
		if d >= bins {
			bin[i] = bins
			continue
		}
		b := int(d)
		w := s.weightOf(d, b)
		bin[i], weight[i] = uint16(b), w
		s.mass[b] += w
	}
}

// eachBin bins and counts every token.
func (s *sampler) eachBin(logits []float32, top float32, scale float64) {
	bin := s.bin[:len(logits)]
	for i, x := range logits {
		b := bins
		if d := below(x, top, scale); d < bins {
			b = int(d)
		}
		bin[i] = uint16(b)
		s.count[b]++
	}
}

// keepFew keeps the k heaviest tokens, among equals those of lower ids, as the border of bin 0: the rest is not even
// looked at twice. border is a heap with the lightest at its root while the logits pass by.
func (s *sampler) keepFew(logits []float32, top float32, scale float64, k int) {
	s.border, s.sorted, s.last = s.border[:0], true, 0
	for i, x := range logits[:k] {
		s.border = append(s.border, candidate{uint32(i), float64(x)})
	}
	for i := k/2 - 1; i >= 0; i-- {
		s.sink(i)
	}
	lightest := float32(s.border[0].weight)
	for i, x := range logits[k:] {
		if x > lightest {
			s.border[0] = candidate{uint32(k + i), float64(x)}
			s.sink(0)
			lightest = float32(s.border[0].weight)
		}
	}
	kept := s.border[:0]
	for _, c := range s.border {
		if d := below(float32(c.weight), top, scale); d < bins {
			kept = append(kept, candidate{c.id, s.weightOf(d, int(d))})
		}
	}
	s.border = kept
	slices.SortFunc(s.border, heavierFirst)
	s.cutBorder(len(s.border))
}

// sink restores the heap below i.
func (s *sampler) sink(i int) {
	for {
		child := 2*i + 1
		if child >= len(s.border) {
			return
		}
		if child+1 < len(s.border) && heavierFirst(s.border[child], s.border[child+1]) < 0 {
			child++
		}
		if heavierFirst(s.border[i], s.border[child]) > 0 {
			return
		}
		s.border[i], s.border[child] = s.border[child], s.border[i]
		i = child
	}
}

// keepCount keeps the k heaviest of the counted tokens, among equals those of lower ids, and weighs only them.
func (s *sampler) keepCount(logits []float32, top float32, scale float64, k int) {
	b := 0
	for b < bins-1 && k > s.count[b] {
		k -= s.count[b]
		b++
	}
	s.last = b
	clear(s.mass[:b+1])
	for i, x := range logits {
		if bin := int(s.bin[i]); bin <= b {
			s.weight[i] = s.weightOf(below(x, top, scale), bin)
			s.mass[bin] += s.weight[i]
		}
	}
	s.sortBorder()
	s.cutBorder(min(k, len(s.border)))
}

// keepMass keeps the heaviest tokens that together have at least the share p of the weight; never none.
func (s *sampler) keepMass(p float64) {
	total := 0.0
	for _, m := range s.mass[:s.last+1] {
		total += m
	}
	need := float64(total * p)
	b := 0
	for b < s.last && need > s.mass[b] {
		need -= s.mass[b]
		b++
	}
	if b != s.last || !s.sorted {
		s.last = b
		s.sortBorder()
	}
	n := 0
	for sum := 0.0; n < len(s.border) && sum < need; n++ {
		sum += s.border[n].weight
	}
	s.cutBorder(n)
}

// sortBorder lists the last bin's tokens in border.
func (s *sampler) sortBorder() {
	s.border, s.sorted = s.border[:0], true
	for i, b := range s.bin {
		if int(b) == s.last {
			s.border = append(s.border, candidate{uint32(i), s.weight[i]})
		}
	}
	slices.SortFunc(s.border, heavierFirst)
}

func (s *sampler) cutBorder(n int) {
	s.border = s.border[:n]
	s.mass[s.last] = 0
	for _, c := range s.border {
		s.mass[s.last] += c.weight
	}
}

// draw picks the token at the share u of the weight, in the order of bins. The likeliest token weighs 1, so there is
// always one.
func (s *sampler) draw(u float64) uint32 {
	total, heavy := 0.0, 0
	for b, m := range s.mass[:s.last+1] {
		if total += m; m > 0 {
			heavy = b
		}
	}
	left := float64(u * total)
	b := 0
	for b < heavy && left >= s.mass[b] {
		left -= s.mass[b]
		b++
	}
	var chosen uint32
	if b == s.last && s.sorted {
		for _, c := range s.border {
			if chosen = c.id; left < c.weight {
				break
			}
			left -= c.weight
		}
		return chosen
	}
	for i, bin := range s.bin {
		if int(bin) != b {
			continue
		}
		if chosen = uint32(i); left < s.weight[i] {
			break
		}
		left -= s.weight[i]
	}
	return chosen
}

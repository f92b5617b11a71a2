package inferencetest

import (
	"context"
	"fmt"
	"sync"

	"github.com/holdfast-ai/holdfast/inference"
)

// Tokenizer has a token for every byte and some of several: whole words, characters of several bytes, and pieces
// of such characters that only make sense together. Its methods may be called concurrently.
type Tokenizer struct{}

// Control tokens. They stand for no bytes.
const (
	End    uint32 = 256 + iota // ends an answer
	Begin                      // opens a message; the next token is the role
	Silent                     // ends nothing and means nothing
	firstPiece
)

var pieces = [...]string{
	"ab", "cd ", "the ", "stop", "st", "op ", "é", "ü ", "€", "🙂", "\xc3", "\xa9", "\xe2\x82", "\xac", "x\xf0\x9f", "\x99\x82", "\xff", "\xe2",
}

// vocabulary is the number of tokens.
const vocabulary = int(firstPiece) + len(pieces)

// Encode gives each byte its token.
func (Tokenizer) Encode(dst []uint32, text string) []uint32 {
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b))
	}
	return dst
}

// Bytes returns what a token stands for.
func (Tokenizer) Bytes(token uint32) []byte {
	switch {
	case token < 256:
		return []byte{byte(token)}
	case token < firstPiece:
		return nil
	}
	return []byte(pieces[token-firstPiece])
}

// IsEnd reports whether token is End.
func (Tokenizer) IsEnd(token uint32) bool { return token == End }

// Vocabulary returns the number of tokens.
func (Tokenizer) Vocabulary() int { return vocabulary }

// Template writes a message as Begin, its role's first letter, its bytes and End.
type Template struct{}

// Name is the template's name.
func (Template) Name() string { return "fake/1" }

// Render implements inference.Template.
func (Template) Render(dst []uint32, t inference.Tokenizer, msgs []inference.Message) ([]uint32, error) {
	for _, m := range msgs {
		dst = append(dst, Begin, uint32(m.Role[0]))
		dst = append(t.Encode(dst, m.Content), End)
	}
	return append(dst, Begin, 'a'), nil
}

// StepperOptions of a Stepper. The zero value has 4 slots, 32 rows and 4 logits a step and 256 positions.
type StepperOptions struct {
	Slots, Rows, Logits, Context int
	// EndBias is added to the logit of End: 0 ends most answers after some dozens of tokens, -20 none.
	EndBias float32
	// Before, if set, is called in each step before anything is computed. Its error is the step's, and it may panic.
	Before func(ctx context.Context, rows []inference.Row) error
	// Logits, if set, may change logits before they are returned.
	Change func(row inference.Row, logits []float32)
}

// Stepper is a model without weights. It checks what its caller promises: shapes, order and limits of rows, one caller
// at a time, no position without the one before it. What it finds it returns from Step and keeps for Violations.
type Stepper struct {
	o      StepperOptions
	caches [][]cell
	out    [][]float32

	mu struct {
		sync.Mutex
		busy, closed bool
		violations   []string
		computed     int
		steps        int
	}
}

// cell is a position of a slot's cache: the hash of all tokens up to it.
type cell struct {
	history uint64
	written bool
}

// NewStepper returns a Stepper.
func NewStepper(o StepperOptions) *Stepper {
	for _, d := range []struct {
		p     *int
		value int
	}{{&o.Slots, 4}, {&o.Rows, 32}, {&o.Logits, 4}, {&o.Context, 256}} {
		if *d.p == 0 {
			*d.p = d.value
		}
	}
	s := &Stepper{o: o}
	for range o.Slots {
		s.caches = append(s.caches, make([]cell, o.Context))
	}
	for range o.Logits {
		s.out = append(s.out, make([]float32, vocabulary))
	}
	return s
}

// Slots implements inference.Stepper.
func (s *Stepper) Slots() int { return s.o.Slots }

// MaxRows implements inference.Stepper.
func (s *Stepper) MaxRows() int { return s.o.Rows }

// MaxLogits implements inference.Stepper.
func (s *Stepper) MaxLogits() int { return s.o.Logits }

// Context implements inference.Stepper.
func (s *Stepper) Context() int { return s.o.Context }

// Vocabulary implements inference.Stepper.
func (s *Stepper) Vocabulary() int { return vocabulary }

// Violations lists the promises that the caller broke.
func (s *Stepper) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.mu.violations...)
}

// Computed returns how many rows were computed.
func (s *Stepper) Computed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.computed
}

// Steps returns how many steps were begun.
func (s *Stepper) Steps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.steps
}

func (s *Stepper) violation(format string, args ...any) error {
	err := fmt.Errorf("inferencetest: "+format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.violations = append(s.mu.violations, err.Error())
	return err
}

// enter fails if another call is under way.
func (s *Stepper) enter() error {
	s.mu.Lock()
	busy, closed := s.mu.busy, s.mu.closed
	s.mu.busy = true
	s.mu.Unlock()
	switch {
	case busy:
		return s.violation("two calls at a time")
	case closed:
		return s.violation("a call after Close")
	}
	return nil
}

func (s *Stepper) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.busy = false
}

// Step implements inference.Stepper. A step whose context is done leaves garbage at its positions.
func (s *Stepper) Step(ctx context.Context, rows []inference.Row) ([][]float32, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	s.mu.Lock()
	s.mu.steps++
	s.mu.Unlock()
	if err := s.check(rows); err != nil {
		return nil, err
	}
	if s.o.Before != nil {
		if err := s.o.Before(ctx, rows); err != nil {
			s.spoil(rows)
			return nil, err
		}
	}
	if err := context.Cause(ctx); err != nil {
		s.spoil(rows)
		return nil, err
	}
	var out [][]float32
	for _, r := range rows {
		cache := s.caches[r.Slot]
		before := uint64(1)
		if r.Position > 0 {
			if !cache[r.Position-1].written {
				return nil, s.violation("slot %d has nothing at position %d", r.Slot, r.Position-1)
			}
			before = cache[r.Position-1].history
		}
		cache[r.Position] = cell{history: mix(before ^ uint64(r.Token)), written: true}
		if r.Logits {
			l := s.out[len(out)]
			s.logits(l, cache[r.Position].history)
			if s.o.Change != nil {
				s.o.Change(r, l)
			}
			out = append(out, l)
		}
	}
	s.mu.Lock()
	s.mu.computed += len(rows)
	s.mu.Unlock()
	return out, nil
}

// check looks for broken promises about rows.
func (s *Stepper) check(rows []inference.Row) error {
	if len(rows) == 0 || len(rows) > s.o.Rows {
		return s.violation("%d rows; 1 to %d are allowed", len(rows), s.o.Rows)
	}
	wanted := 0
	last := map[uint32]uint32{}
	for _, r := range rows {
		if int(r.Slot) >= s.o.Slots || int(r.Position) >= s.o.Context || int(r.Token) >= vocabulary {
			return s.violation("row %+v is out of range", r)
		}
		if p, ok := last[r.Slot]; ok && r.Position <= p {
			return s.violation("slot %d: position %d after %d in one step", r.Slot, r.Position, p)
		}
		last[r.Slot] = r.Position
		if r.Logits {
			wanted++
		}
	}
	if wanted > s.o.Logits {
		return s.violation("%d logits wanted; %d are allowed", wanted, s.o.Logits)
	}
	return nil
}

func (s *Stepper) spoil(rows []inference.Row) {
	for i, r := range rows {
		s.caches[r.Slot][r.Position] = cell{history: mix(uint64(i) ^ 0xBAD), written: true}
	}
}

// logits fills l for a history: letters, pieces and End are likely, other bytes hardly.
func (s *Stepper) logits(l []float32, history uint64) {
	for t := range l {
		noise := float32(mix(history^uint64(t)<<32)>>40) / (1 << 24) * 4
		switch {
		case uint32(t) == End:
			noise += s.o.EndBias
		case uint32(t) == Begin, t < 'a', t > 'h' && t < 256:
			noise -= 20
		}
		l[t] = noise
	}
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// Logits returns the logits after history, as a slice of the caller's, without a slot: what a correct use of Step
// amounts to.
func (s *Stepper) Logits(history []uint32) []float32 {
	h := uint64(1)
	for _, t := range history {
		h = mix(h ^ uint64(t))
	}
	l := make([]float32, vocabulary)
	s.logits(l, h)
	return l
}

// Close implements inference.Stepper.
func (s *Stepper) Close() error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.closed = true
	return nil
}

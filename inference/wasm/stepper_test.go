package wasm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/holdfast-ai/holdfast/inference"
)

func mustStep(t testing.TB, s *Stepper, rows []inference.Row) [][]float32 {
	t.Helper()
	logits, err := s.Step(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	return logits
}

// forced returns copies of the logits after each token, computed in chunks of the given size.
func forced(t testing.TB, s *Stepper, slot, chunk int, tokens []uint32) [][]float32 {
	t.Helper()
	return forcedFrom(t, s, slot, 0, chunk, tokens)
}

// forcedFrom is forced from a position on; the slot holds what is before.
func forcedFrom(t testing.TB, s *Stepper, slot, first, chunk int, tokens []uint32) [][]float32 {
	t.Helper()
	var out [][]float32
	for i := first; i < len(tokens); i += chunk {
		for _, l := range mustStep(t, s, rowsOf(slot, i, tokens[i:min(i+chunk, len(tokens))])) {
			out = append(out, slices.Clone(l))
		}
	}
	return out
}

func TestLogitsMatchAnExactForward(t *testing.T) {
	for _, tied := range []bool{true, false} {
		t.Run(fmt.Sprintf("tied=%v", tied), func(t *testing.T) {
			m := newTinyModel(tied)
			tokens := randomTokens(150, tinyVocabulary)
			exact := m.forward(t, tokens)
			s := openTiny(t, m, t.TempDir(), Options{Slots: 2, Context: 200, MaxLogits: 64})
			worst := 0.0
			for i, got := range forced(t, s, 1, 64, tokens) {
				var errs, size float64
				for j, v := range exact[i] {
					errs += (float64(got[j]) - v) * (float64(got[j]) - v)
					size += v * v
				}
				worst = max(worst, math.Sqrt(errs/size))
			}
			if t.Logf("worst error %.5f", worst); !(worst < 0.003) {
				t.Fatalf("logits are off by up to %.2f %%", worst*100)
			}
		})
	}
}

// TestRowsDoNotDependOnTheirBatch computes the same conversation in many ways and wants the same bits.
func TestRowsDoNotDependOnTheirBatch(t *testing.T) {
	m := newTinyModel(true)
	s := openTiny(t, m, t.TempDir(), Options{Slots: 4, Context: 128, MaxLogits: 64})
	tokens := randomTokens(100, tinyVocabulary)
	alone := forced(t, s, 0, 1, tokens)
	for _, chunk := range []int{2, 3, 7, 31, 32, 33, 64} {
		equalLogits(t, fmt.Sprintf("in chunks of %d", chunk), alone, forced(t, s, 1, chunk, tokens))
	}
	// Three conversations side by side, each at its own place and pace, prefill beside decode.
	others := randomTokens(128, 69)
	var got [][]float32
	for at, step := 0, 0; at < len(tokens); step++ {
		mine := rowsOf(2, at, tokens[at:min(at+1+step%5, len(tokens))])
		rows := slices.Clone(mine)
		if p := step % 128; p == 0 || s.held[0] >= p {
			rows = slices.Concat(rowsOf(0, p, others[p:p+1]), rows)
		}
		rows = append(rows, rowsOf(3, 0, others[:1+step%9])...)
		before := len(rows) - len(mine) - (1 + step%9)
		for _, l := range mustStep(t, s, rows)[before : before+len(mine)] {
			got = append(got, slices.Clone(l))
		}
		at += len(mine)
	}
	equalLogits(t, "in company", alone, got)
}

func equalLogits(t *testing.T, how string, want, got [][]float32) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%s: %d rows, want %d", how, len(got), len(want))
	}
	for i := range want {
		for j := range want[i] {
			if math.Float32bits(want[i][j]) != math.Float32bits(got[i][j]) {
				t.Fatalf("%s: after token %d logit %d is %g, want %g", how, i, j, got[i][j], want[i][j])
			}
		}
	}
}

func TestOnlyWantedLogitsInRowOrder(t *testing.T) {
	m := newTinyModel(true)
	s := openTiny(t, m, t.TempDir(), Options{Slots: 1, Context: 64, MaxLogits: 64})
	tokens := randomTokens(20, tinyVocabulary)
	all := forced(t, s, 0, 20, tokens)
	rows := rowsOf(0, 0, tokens)
	for i := range rows {
		rows[i].Logits = i == 3 || i == 19
	}
	equalLogits(t, "two of twenty", [][]float32{all[3], all[19]}, mustStep(t, s, rows))
	for i := range rows {
		rows[i].Logits = false
	}
	if got := mustStep(t, s, rows); len(got) != 0 {
		t.Fatalf("%d rows of logits though none were wanted", len(got))
	}
	if len(all[0]) != s.Vocabulary() || s.Vocabulary() != tinyVocabulary {
		t.Fatalf("%d logits for a vocabulary of %d", len(all[0]), s.Vocabulary())
	}
}

func TestInvalidRowsAreRefusedAndChangeNothing(t *testing.T) {
	m := newTinyModel(true)
	s := openTiny(t, m, t.TempDir(), Options{Slots: 2, Context: 40, MaxRows: 8, MaxLogits: 4})
	tokens := randomTokens(8, tinyVocabulary)
	want := forced(t, s, 0, 4, tokens)
	row := func(token, slot, position uint32) inference.Row {
		return inference.Row{Token: token, Slot: slot, Position: position}
	}
	for _, c := range []struct {
		name string
		rows []inference.Row
	}{
		{"token beyond the vocabulary", []inference.Row{row(tinyVocabulary, 0, 0)}},
		{"token that overflows", []inference.Row{row(math.MaxUint32, 0, 0)}},
		{"slot beyond the last", []inference.Row{row(1, 2, 0)}},
		{"position beyond the context", []inference.Row{row(1, 0, 40)}},
		{"gap in a fresh slot", []inference.Row{row(1, 1, 1)}},
		{"gap after what the slot holds", []inference.Row{row(1, 0, 9)}},
		{"gap within a step", []inference.Row{row(1, 1, 0), row(1, 1, 2)}},
		{"the same position twice", []inference.Row{row(1, 1, 0), row(1, 1, 0)}},
		{"falling positions", []inference.Row{row(1, 0, 5), row(1, 0, 4)}},
		{"too many rows", rowsOf(1, 0, make([]uint32, 9))},
		{"too many wanted logits", rowsOf(1, 0, make([]uint32, 5))},
		{"a good row before a bad one", []inference.Row{row(1, 0, 3), row(tinyVocabulary, 1, 0)}},
	} {
		if _, err := s.Step(t.Context(), c.rows); !errors.Is(err, inference.ErrInvalidRequest) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	got := slices.Clone(mustStep(t, s, rowsOf(0, 7, tokens[7:]))[0])
	equalLogits(t, "after refusals", want[7:], [][]float32{got})
	if out, err := s.Step(t.Context(), nil); len(out) != 0 || err != nil {
		t.Errorf("a step without rows: %v, %v", out, err)
	}
}

// TestSlotForgetsItsFormerUser is invariant 7 where it could break most quietly: a position that nobody wrote anew.
func TestSlotForgetsItsFormerUser(t *testing.T) {
	m := newTinyModel(true)
	s := openTiny(t, m, t.TempDir(), Options{Slots: 1, Context: 64, MaxLogits: 64})
	forced(t, s, 0, 64, randomTokens(64, tinyVocabulary))
	fresh := randomTokens(40, 60)
	mustStep(t, s, rowsOf(0, 0, fresh[:5]))
	if _, err := s.Step(t.Context(), rowsOf(0, 6, fresh[6:7])); !errors.Is(err, inference.ErrInvalidRequest) {
		t.Fatalf("position 6 of a slot that was begun again up to 4: got %v", err)
	}
	other := openTiny(t, m, t.TempDir(), Options{Slots: 1, Context: 64, MaxLogits: 64})
	equalLogits(t, "in a used slot", forced(t, other, 0, 7, fresh), forced(t, s, 0, 7, fresh))
}

// countdown is a context that is cancelled when it has been asked n times.
type countdown struct {
	context.Context
	left  int
	cause error
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return c.cause
	}
	return nil
}

func TestCancelledStepIsAbandonedAndHarmless(t *testing.T) {
	m := newTinyModel(true)
	s := openTiny(t, m, t.TempDir(), Options{Slots: 2, Context: 128, MaxLogits: 64})
	yieldOften(t, s)
	tokens := randomTokens(100, tinyVocabulary)
	want := forced(t, s, 0, 20, tokens)
	bystander := forced(t, s, 1, 20, tokens[:60])
	abandoned := 0
	for after := 1; ; after++ {
		// The slot holds 100 positions; the step is to write the last 60 anew.
		_, err := s.Step(&countdown{t.Context(), after, context.Canceled}, rowsOf(0, 40, tokens[40:]))
		if err == nil {
			break // the step had come to its end before it asked again
		}
		if abandoned++; !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled after %d questions: %v", after, err)
		}
		if _, err := s.Step(t.Context(), rowsOf(0, 41, tokens[41:42])); !errors.Is(err, inference.ErrInvalidRequest) {
			t.Fatalf("a position that an abandoned step was to write counts as written: %v", err)
		}
		equalLogits(t, "after an abandoned step", want[40:], forcedFrom(t, s, 0, 40, 60, tokens))
	}
	if abandoned < 50 {
		t.Fatalf("a step could be stopped at %d places only", abandoned)
	}
	equalLogits(t, "beside abandoned steps", bystander[59:], forcedFrom(t, s, 1, 59, 1, tokens[:60]))
}

// yieldOften lets the guest ask after almost every piece of work, so that a tiny model can be stopped anywhere.
func yieldOften(t *testing.T, s *Stepper) {
	t.Helper()
	config, err := s.guestCall(t.Context(), "config")
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(s.memory.bytes[config+8*4:], 20000)
	if _, err := s.guestCall(t.Context(), "init"); err != nil {
		t.Fatal(err)
	}
}

func TestDoneContextComputesNothing(t *testing.T) {
	s := openTiny(t, newTinyModel(true), t.TempDir(), Options{})
	cause := errors.New("not wanted any more")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := s.Step(ctx, rowsOf(0, 0, []uint32{1})); !errors.Is(err, cause) {
		t.Fatalf("got %v, want the cause", err)
	}
}

func TestMemoryIsCountedAsItIsUsed(t *testing.T) {
	s := openTiny(t, newTinyModel(true), t.TempDir(), Options{Slots: 4, Context: 256, MaxLogits: 64})
	block := int64(s.plan.kvBlockBytes)
	before := s.MemoryBytes()
	for _, c := range []struct {
		slot, first, n int
		blocks         int64
	}{{0, 0, 32, 1}, {0, 32, 1, 2}, {1, 0, 1, 3}, {0, 0, 5, 3}, {0, 5, 60, 4}} {
		mustStep(t, s, rowsOf(c.slot, c.first, randomTokens(c.n, tinyVocabulary)))
		if got := (s.MemoryBytes() - before) / block; got != c.blocks {
			t.Errorf("after %d rows at %d of slot %d: %d blocks, want %d", c.n, c.first, c.slot, got, c.blocks)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s.MemoryBytes() != 0 {
		t.Errorf("a closed model counts %d bytes", s.MemoryBytes())
	}
	if _, err := s.Step(t.Context(), rowsOf(0, 0, []uint32{1})); !errors.Is(err, inference.ErrClosed) {
		t.Errorf("a step after Close: %v", err)
	}
}

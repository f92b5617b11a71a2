package inferencetest

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-ai/holdfast/inference"
)

// rows of one slot at rising positions; the last wants logits.
func rows(slot, position uint32, tokens ...uint32) (r []inference.Row) {
	for i, t := range tokens {
		r = append(r, inference.Row{Slot: slot, Position: position + uint32(i), Token: t, Logits: i == len(tokens)-1})
	}
	return r
}

func TestStepperGivesTheLogitsOfTheHistory(t *testing.T) {
	s := NewStepper(StepperOptions{})
	step := func(r []inference.Row) [][]float32 {
		t.Helper()
		out, err := s.Step(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	step(rows(0, 0, 'a', 'b', 'c'))
	out := step(append(rows(0, 3, 'd'), rows(1, 0, 'x', 'y')...))
	if !reflect.DeepEqual(out[0], s.Logits([]uint32{'a', 'b', 'c', 'd'})) || !reflect.DeepEqual(out[1], s.Logits([]uint32{'x', 'y'})) {
		t.Fatal("logits are not those of the whole history")
	}
	step(rows(0, 1, 'B')) // an older position again: what came after is gone
	out = step(rows(0, 2, 'C'))
	if !reflect.DeepEqual(out[0], s.Logits([]uint32{'a', 'B', 'C'})) {
		t.Fatal("a position was not overwritten")
	}
	if v := s.Violations(); v != nil || s.Computed() != 8 || s.Steps() != 4 {
		t.Fatalf("%d rows in %d steps; violations %v", s.Computed(), s.Steps(), v)
	}
}

func TestStepperFindsMistakes(t *testing.T) {
	for want, r := range map[string][]inference.Row{
		"rows":        rows(0, 0, make([]uint32, 33)...),
		"0 rows":      nil,
		"range":       rows(4, 0, 'a'),
		"{Token:97":   rows(0, 256, 'a'),
		"Token:99999": rows(0, 0, 99999),
		"nothing":     rows(0, 1, 'a'),
		"in one step": append(rows(0, 0, 'a', 'b'), rows(0, 1, 'c')...),
		"logits":      append(append(rows(0, 0, 'a'), rows(1, 0, 'a')...), append(rows(2, 0, 'a'), append(rows(3, 0, 'a'), rows(0, 1, 'a')...)...)...),
	} {
		s := NewStepper(StepperOptions{})
		_, err := s.Step(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), want) || len(s.Violations()) != 1 {
			t.Errorf("%v: %v, want an error with %q; violations %q", r, err, want, s.Violations())
		}
	}
	s := NewStepper(StepperOptions{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Step(t.Context(), rows(0, 0, 'a')); err == nil || s.Close() == nil {
		t.Error("a closed stepper still works")
	}
}

func TestCancelledStepLeavesGarbage(t *testing.T) {
	s := NewStepper(StepperOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Step(ctx, rows(0, 0, 'a')); err == nil {
		t.Fatal("no error")
	}
	out, err := s.Step(t.Context(), rows(0, 1, 'b'))
	if err != nil || reflect.DeepEqual(out[0], s.Logits([]uint32{'a', 'b'})) {
		t.Fatalf("the cancelled step's position was of use; %v", err)
	}
}

func TestTokenizerRoundTrip(t *testing.T) {
	var tok Tokenizer
	var b strings.Builder
	const text = "plain, ünïcode 🙂 and \xff"
	for _, token := range tok.Encode(nil, text) {
		b.Write(tok.Bytes(token))
	}
	if b.String() != text {
		t.Fatalf("%q, want %q", b.String(), text)
	}
	for token := range uint32(tok.Vocabulary()) {
		control := token == End || token == Begin || token == Silent
		if control != (len(tok.Bytes(token)) == 0) || tok.IsEnd(token) != (token == End) {
			t.Errorf("token %d stands for %q", token, tok.Bytes(token))
		}
	}
}

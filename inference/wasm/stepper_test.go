package wasm

import (
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
	var out [][]float32
	for i := 0; i < len(tokens); i += chunk {
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
			tokens := randomTokens(150, 70)
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

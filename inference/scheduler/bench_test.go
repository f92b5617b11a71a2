package scheduler_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/inferencetest"
	"github.com/holdfast-ai/holdfast/inference/scheduler"
)

// instant is a model whose steps take no time.
type instant struct {
	slots  int
	logits [][]float32
}

func (m *instant) Slots() int      { return m.slots }
func (m *instant) MaxRows() int    { return 64 }
func (m *instant) MaxLogits() int  { return m.slots }
func (m *instant) Context() int    { return 2048 }
func (m *instant) Vocabulary() int { return inferencetest.Tokenizer{}.Vocabulary() }
func (m *instant) Close() error    { return nil }
func (m *instant) Step(_ context.Context, rows []inference.Row) ([][]float32, error) {
	n := 0
	for _, r := range rows {
		if r.Logits {
			n++
		}
	}
	return m.logits[:n], nil
}

// BenchmarkToken is the scheduler's own share of a token: planning, text, handing on, and sampling from a vocabulary of a
// few hundred. BenchmarkSample is the cost of choosing from a usual one.
func BenchmarkToken(b *testing.B) {
	logits := make([]float32, inferencetest.Tokenizer{}.Vocabulary())
	for i := range logits {
		logits[i] = -float32(i%977) / 40
	}
	logits['a'] = 5
	for _, slots := range []int{1, 8} {
		for _, temperature := range []float32{0, 0.8} {
			b.Run(fmt.Sprintf("slots=%d/temperature=%v", slots, temperature), func(b *testing.B) {
				m := &instant{slots: slots}
				for range slots {
					m.logits = append(m.logits, logits)
				}
				s, err := scheduler.New(m, inferencetest.Tokenizer{}, inferencetest.Template{}, scheduler.Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for i := range slots {
					wg.Go(func() {
						for left := b.N / slots; left > 0; {
							r := request("hello", min(left, 1000))
							r.Sampling.Temperature, r.Sampling.Seed = temperature, uint64(i)
							u, err := s.Run(context.Background(), r, func(inference.Chunk) error { return nil })
							if err != nil {
								b.Error(err)
								return
							}
							left -= max(u.CompletionTokens, 1)
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

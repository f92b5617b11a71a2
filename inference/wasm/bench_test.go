package wasm

import (
	"fmt"
	"math"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-ai/holdfast/inference"
)

// BenchmarkDecode is one token for each of several conversations; tokens/s is over all of them.
func BenchmarkDecode(b *testing.B) {
	for _, slots := range []int{1, 4, 8} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) {
			s := openReal(b, Options{Slots: slots})
			rows := make([]inference.Row, slots)
			for p := 0; b.Loop(); p++ {
				for i := range rows {
					rows[i] = inference.Row{Token: uint32(100 + i), Slot: uint32(i), Position: uint32(p % 128), Logits: true}
				}
				mustStep(b, s, rows)
			}
			b.ReportMetric(float64(b.N*slots)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

func BenchmarkPrefill(b *testing.B) {
	for _, n := range []int{64, 256} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			s := openReal(b, Options{Slots: 1})
			tokens := randomTokens(n, 40000)
			for b.Loop() {
				prefill(b, s, tokens)
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

func prefill(t testing.TB, s *Stepper, tokens []uint32) {
	t.Helper()
	for i := 0; i < len(tokens); i += s.MaxRows() {
		rows := rowsOf(0, i, tokens[i:min(i+s.MaxRows(), len(tokens))])
		for j := range rows {
			rows[j].Logits = i+j == len(tokens)-1
		}
		mustStep(t, s, rows)
	}
}

// BenchmarkOpen is a start with packed weights and compiled code in the cache.
func BenchmarkOpen(b *testing.B) {
	openReal(b, Options{})
	for b.Loop() {
		if err := openReal(b, Options{}).Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStopTheWorld collects garbage while the guest computes and reports the longest pauses of the whole program.
func BenchmarkStopTheWorld(b *testing.B) {
	for _, work := range []string{"decode", "prefill"} {
		b.Run(work, func(b *testing.B) {
			s := openReal(b, Options{Slots: 1})
			tokens := randomTokens(256, 40000)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if work == "prefill" {
						prefill(b, s, tokens)
						continue
					}
					for p := range tokens {
						mustStep(b, s, rowsOf(0, p, tokens[p:p+1]))
					}
				}
			})
			before := pauses()
			for b.Loop() {
				runtime.GC()
				time.Sleep(5 * time.Millisecond) // let the guest compute
			}
			after := pauses()
			close(stop)
			wg.Wait()
			for i := range after.Counts {
				after.Counts[i] -= before.Counts[i]
			}
			b.ReportMetric(quantile(after, 0.5)*1e3, "p50-pause-ms")
			b.ReportMetric(quantile(after, 0.99)*1e3, "p99-pause-ms")
			b.ReportMetric(quantile(after, 1)*1e3, "max-pause-ms")
		})
	}
}

func pauses() *metrics.Float64Histogram {
	sample := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64Histogram()
}

// quantile is the upper bound of the bucket in which a quantile lies.
func quantile(h *metrics.Float64Histogram, q float64) float64 {
	var total uint64
	for _, n := range h.Counts {
		total += n
	}
	rank := uint64(math.Ceil(q * float64(total)))
	for i, n := range h.Counts {
		if n >= rank {
			return h.Buckets[i+1]
		}
		rank -= n
	}
	return 0
}

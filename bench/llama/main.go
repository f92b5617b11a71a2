//go:build unix

// Command llama compares the WebAssembly runtime with llama.cpp: the same model file, the same tokens, one thread each,
// interleaved, so that both see the same disturbances of the machine. Use run.sh beside it, which fetches and builds the
// peer. On a machine that does other things as well, the ratio of processor time says more than that of elapsed time.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/wasm"
)

// A figure is one thing to measure.
type figure struct {
	name          string
	slots         int // of a decode; 0: a prefill
	prefill       int
	warm, measure int // steps of a decode
}

var figures = []figure{
	{name: "decode, 1 stream", slots: 1, warm: 16, measure: 48},
	{name: "decode, 4 streams", slots: 4, warm: 16, measure: 32},
	{name: "decode, 8 streams", slots: 8, warm: 16, measure: 24},
	{name: "prefill, 64 tokens", prefill: 64},
	{name: "prefill, 256 tokens", prefill: 256},
}

func (f figure) tokens() float64 { return float64(f.prefill + f.slots*f.measure) }

func (f figure) command() string {
	if f.slots == 0 {
		return fmt.Sprintf("prefill %d", f.prefill)
	}
	return fmt.Sprintf("decode %d %d %d", f.slots, f.warm, f.measure)
}

// cost is what computing a figure took, in seconds.
type cost struct{ elapsed, processor float64 }

// contender computes a figure.
type contender interface {
	run(f figure) (cost, error)
}

func main() {
	work := flag.String("work", "", "folder with model.gguf, llama/bins and the built peer")
	pairs := flag.Int("pairs", 10, "how often each figure is measured")
	flag.Parse()
	if err := bench(context.Background(), *work, *pairs); err != nil {
		log.Fatal(err)
	}
}

func bench(ctx context.Context, work string, pairs int) error {
	ours, err := openOurs(ctx, work)
	if err != nil {
		return err
	}
	defer ours.stepper.Close()
	names := []string{"Holdfast", "llama.cpp AVX2", "llama.cpp AVX-512/AMX"}
	contenders := []contender{ours}
	for _, backend := range []string{"haswell", "sapphirerapids"} {
		p, err := startPeer(ctx, work, backend)
		if err != nil {
			return err
		}
		defer p.stop()
		contenders = append(contenders, p)
	}
	fmt.Printf("| tokens/s, median of %d | %s | Holdfast / AVX2 (95 %% interval) | the same by processor time |\n|---|---|---|---|---|---|\n", pairs, strings.Join(names, " | "))
	for _, f := range figures {
		elapsed, processor := make([][]float64, len(contenders)), make([][]float64, len(contenders))
		for round := range pairs + 1 {
			for i, c := range contenders {
				took, err := c.run(f)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", names[i], f.name, err)
				}
				if round > 0 { // the first warms caches
					elapsed[i] = append(elapsed[i], f.tokens()/took.elapsed)
					processor[i] = append(processor[i], f.tokens()/took.processor)
				}
			}
		}
		fmt.Printf("| %s | %.1f | %.1f | %.1f | %s | %s |\n", f.name, median(elapsed[0]), median(elapsed[1]), median(elapsed[2]),
			ratios(elapsed[0], elapsed[1]), ratios(processor[0], processor[1]))
	}
	return nil
}

// ratios returns the geometric mean of the pairs' ratios and its 95 % interval by resampling the pairs.
func ratios(a, b []float64) string {
	logs := make([]float64, len(a))
	for i := range a {
		logs[i] = math.Log(a[i] / b[i])
	}
	rng := rand.New(rand.NewPCG(1, 2))
	means := make([]float64, 10000)
	for i := range means {
		for range logs {
			means[i] += logs[rng.IntN(len(logs))] / float64(len(logs))
		}
		means[i] = math.Exp(means[i])
	}
	slices.Sort(means)
	mean := 0.0
	for _, l := range logs {
		mean += l / float64(len(logs))
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", math.Exp(mean), means[len(means)*25/1000], means[len(means)*975/1000])
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// token is the same function as the peer's.
func token(sequence, position int) uint32 { return uint32(100 + (position*37+sequence*11)%40000) }

type holdfast struct {
	ctx     context.Context
	stepper *wasm.Stepper
}

func openOurs(ctx context.Context, work string) (*holdfast, error) {
	path := filepath.Join(work, "model.gguf")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := wasm.OpenStepper(ctx, wasm.Source{File: f, SHA256: sha256.Sum256(data), Cache: filepath.Join(work, "cache")}, wasm.Options{})
	return &holdfast{ctx, s}, err
}

func (h *holdfast) run(f figure) (cost, error) {
	if f.slots == 0 {
		watch := startWatch()
		err := h.prefill(f.prefill)
		return watch.stop(), err
	}
	var watch stopwatch
	rows := make([]inference.Row, f.slots)
	for p := range f.warm + f.measure {
		if p == f.warm {
			watch = startWatch()
		}
		for s := range rows {
			rows[s] = inference.Row{Token: token(s, p), Slot: uint32(s), Position: uint32(p), Logits: true}
		}
		if _, err := h.stepper.Step(h.ctx, rows); err != nil {
			return cost{}, err
		}
	}
	return watch.stop(), nil
}

func (h *holdfast) prefill(n int) error {
	var rows []inference.Row
	for p := range n {
		rows = append(rows, inference.Row{Token: token(0, p), Position: uint32(p), Logits: p == n-1})
		if len(rows) < h.stepper.MaxRows() && p < n-1 {
			continue
		}
		if _, err := h.stepper.Step(h.ctx, rows); err != nil {
			return err
		}
		rows = rows[:0]
	}
	return nil
}

// stopwatch measures this process.
type stopwatch struct {
	start     time.Time
	processor float64
}

func startWatch() stopwatch { return stopwatch{time.Now(), processorTime()} }

func (w stopwatch) stop() cost {
	return cost{time.Since(w.start).Seconds(), processorTime() - w.processor}
}

func processorTime() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// peer is a running peer.cpp.
type peer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startPeer(ctx context.Context, work, backend string) (*peer, error) {
	lib := filepath.Join(work, "llama", "bins", "libggml-cpu-"+backend+".so")
	cmd := exec.CommandContext(ctx, filepath.Join(work, "peer"), lib, filepath.Join(work, "model.gguf"), "1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &peer{cmd, in, bufio.NewReader(out)}, cmd.Start()
}

func (p *peer) run(f figure) (took cost, err error) {
	if _, err := fmt.Fprintln(p.in, f.command()); err != nil {
		return took, err
	}
	_, err = fmt.Fscanln(p.out, &took.elapsed, &took.processor)
	return took, err
}

func (p *peer) stop() {
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		log.Print("peer: ", err)
	}
}

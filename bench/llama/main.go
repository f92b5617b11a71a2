// Command llama compares the WebAssembly runtime with llama.cpp: the same model file, the same tokens, one thread each,
// interleaved, so that both see the same disturbances of the machine. Use run.sh beside it, which fetches and builds the
// peer.
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
	"strconv"
	"strings"
	"time"

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

// contender computes a figure and returns how long it took.
type contender interface {
	run(f figure) (time.Duration, error)
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
	fmt.Printf("| tokens/s, median of %d | %s | Holdfast / AVX2 (95 %% interval) |\n|---|---|---|---|---|\n", pairs, strings.Join(names, " | "))
	for _, f := range figures {
		speeds := make([][]float64, len(contenders))
		for round := range pairs + 1 {
			for i, c := range contenders {
				d, err := c.run(f)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", names[i], f.name, err)
				}
				if round > 0 { // the first warms caches
					speeds[i] = append(speeds[i], f.tokens()/d.Seconds())
				}
			}
		}
		ratio, low, high := ratios(speeds[0], speeds[1])
		fmt.Printf("| %s | %.1f | %.1f | %.1f | %.2f (%.2f–%.2f) |\n", f.name, median(speeds[0]), median(speeds[1]), median(speeds[2]), ratio, low, high)
	}
	return nil
}

// ratios returns the geometric mean of the pairs' ratios and its 95 % interval by resampling the pairs.
func ratios(a, b []float64) (mean, low, high float64) {
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
	for _, l := range logs {
		mean += l / float64(len(logs))
	}
	return math.Exp(mean), means[len(means)*25/1000], means[len(means)*975/1000]
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

func (h *holdfast) run(f figure) (time.Duration, error) {
	if f.slots == 0 {
		return h.prefill(f.prefill)
	}
	var start time.Time
	rows := make([]inference.Row, f.slots)
	for p := range f.warm + f.measure {
		if p == f.warm {
			start = time.Now()
		}
		for s := range rows {
			rows[s] = inference.Row{Token: token(s, p), Slot: uint32(s), Position: uint32(p), Logits: true}
		}
		if _, err := h.stepper.Step(h.ctx, rows); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

func (h *holdfast) prefill(n int) (time.Duration, error) {
	start := time.Now()
	var rows []inference.Row
	for p := range n {
		rows = append(rows, inference.Row{Token: token(0, p), Position: uint32(p), Logits: p == n-1})
		if len(rows) < h.stepper.MaxRows() && p < n-1 {
			continue
		}
		if _, err := h.stepper.Step(h.ctx, rows); err != nil {
			return 0, err
		}
		rows = rows[:0]
	}
	return time.Since(start), nil
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

func (p *peer) run(f figure) (time.Duration, error) {
	if _, err := fmt.Fprintln(p.in, f.command()); err != nil {
		return 0, err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	seconds, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
	return time.Duration(seconds * float64(time.Second)), err
}

func (p *peer) stop() {
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		log.Print("peer: ", err)
	}
}

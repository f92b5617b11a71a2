package wasm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/gguf"
)

// packWeights writes the weights in layout R8 (see guest/matrix.h) to dst, which must be zero and w.size long. It uses
// all processors and stops between matrices when ctx is done.
func packWeights(ctx context.Context, f *gguf.File, w *weightLayout, dst []byte, progress func(done, total int64)) error {
	for _, v := range w.vectors {
		if err := packVector(f, v, dst); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	var total int64
	for _, m := range w.matrices {
		total += m.bytes()
	}
	var report struct {
		sync.Mutex
		done int64
	}
	for range min(runtime.GOMAXPROCS(0), len(w.matrices)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(w.matrices) {
					return
				}
				m := w.matrices[i]
				limit, err := packMatrix(f, m, dst)
				if err != nil {
					stop(err)
					return
				}
				putFloat(dst[w.limits+uint64(i)*4:], limit)
				report.Lock()
				report.done += m.bytes()
				if progress != nil {
					progress(report.done, total)
				}
				report.Unlock()
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func packVector(f *gguf.File, v vectorLayout, dst []byte) error {
	t, err := tensor(f, v.tensor, v.length, 1)
	if err != nil {
		return err
	}
	x := make([]float32, v.length)
	if err := t.Row(0, x); err != nil {
		return unreadable(err)
	}
	for i, value := range x {
		if !isFinite(value) {
			return notFinite(v.tensor, 0)
		}
		putFloat(dst[v.offset+uint64(i)*4:], value)
	}
	return nil
}

// packMatrix quantises a matrix and returns its activation limit: the largest size of an activation for which no row's
// sum of products can leave an int32.
func packMatrix(f *gguf.File, m matrixLayout, dst []byte) (float32, error) {
	x, q := make([]float32, m.columns), make([]int8, m.columns)
	row, heaviest := 0, 1
	for _, part := range m.parts {
		t, err := tensor(f, part.tensor, m.columns, part.rows)
		if err != nil {
			return 0, err
		}
		for r := range part.rows {
			if err := t.Row(r, x); err != nil {
				return 0, unreadable(err)
			}
			scale, ok := quantiseRow(x, q)
			if !ok {
				return 0, notFinite(part.tensor, r)
			}
			heaviest = max(heaviest, putRow(dst, m, row, q, scale))
			row++
		}
	}
	return float32(min(math.MaxInt16, math.MaxInt32/heaviest)), nil
}

// putRow stores a quantised row and returns the sum of its sizes.
func putRow(dst []byte, m matrixLayout, row int, q []int8, scale float32) int {
	putFloat(dst[m.scales+uint64(row)*4:], scale)
	tiles := dst[m.weights+uint64(row/tileRows)*uint64(m.columns)*tileRows:]
	inTile, weight := row%tileRows*laneColumns, 0
	for k, v := range q {
		tiles[k/laneColumns*laneColumns*tileRows+inTile+k%laneColumns] = byte(v)
		weight += max(int(v), -int(v))
	}
	return weight
}

// quantiseRow rounds x to int8 and returns the scale that undoes it. False means that x is not finite.
func quantiseRow(x []float32, q []int8) (float32, bool) {
	var largest float32
	for _, v := range x {
		largest = max(largest, v, -v)
	}
	if !isFinite(largest) {
		return 0, false
	}
	if largest == 0 {
		clear(q)
		return 0, true
	}
	inverse := math.MaxInt8 / largest
	for k, v := range x {
		q[k] = int8(math.RoundToEven(float64(v * inverse)))
	}
	return largest / math.MaxInt8, true
}

func isFinite(v float32) bool { return math.Float32bits(v)&0x7f800000 != 0x7f800000 }

// tensor finds a tensor and checks its dimensions.
func tensor(f *gguf.File, name string, columns, rows int) (*gguf.Tensor, error) {
	t, err := f.Tensor(name)
	if err != nil {
		return nil, unreadable(err)
	}
	if t.Columns() != columns || t.Rows() != rows {
		return nil, fmt.Errorf("%w: tensor %s has dimensions %v; the model's metadata says %d by %d", inference.ErrModelUnavailable, name, t.Dims(), columns, rows)
	}
	return t, nil
}

func unreadable(err error) error { return fmt.Errorf("%w: %w", inference.ErrModelUnavailable, err) }

func notFinite(name string, row int) error {
	return fmt.Errorf("%w: row %d of tensor %s is not finite: the file is damaged, fetch it again", inference.ErrModelUnavailable, row, name)
}

// limitOf is the activation limit of matrix i.
func limitOf(w *weightLayout, weights []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(weights[w.limits+uint64(i)*4:]))
}

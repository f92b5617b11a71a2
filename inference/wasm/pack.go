package wasm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdfast-ai/holdfast/inference"
)

// packWeights writes the weights in layout R8 (see guest/matrix.h) to dst, which must be zero and w.size long. It uses
// all processors and stops between matrices when ctx is done.
func packWeights(ctx context.Context, ts tensors, w *weightLayout, dst []byte, progress func(done, total int64)) error {
	for _, v := range w.vectors {
		if err := packVector(ts, v, dst); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var next, done atomic.Int64
	var wg sync.WaitGroup
	var report sync.Mutex
	for range min(runtime.GOMAXPROCS(0), len(w.matrices)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(w.matrices) {
					return
				}
				m := w.matrices[i]
				limit, err := packMatrix(ts, m, dst)
				if err != nil {
					stop(err)
					return
				}
				putFloat(dst[w.limits+uint64(i)*4:], limit)
				n := done.Add(int64(m.columns) * int64(m.rows))
				if progress != nil {
					report.Lock()
					progress(n, int64(w.size))
					report.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func packVector(ts tensors, v vectorLayout, dst []byte) error {
	if dims := ts.Dims(v.tensor); len(dims) != 1 || dims[0] != uint64(v.length) {
		return mismatch(v.tensor, dims, v.length)
	}
	x := make([]float32, v.length)
	if err := ts.Row(v.tensor, 0, x); err != nil {
		return unreadable(v.tensor, err)
	}
	for i, f := range x {
		if !isFinite(f) {
			return notFinite(v.tensor, 0)
		}
		putFloat(dst[v.offset+uint64(i)*4:], f)
	}
	return nil
}

// packMatrix quantises a matrix and returns its activation limit: the largest size of an activation for which no row's
// sum of products can leave an int32.
func packMatrix(ts tensors, m matrixLayout, dst []byte) (float32, error) {
	x, q := make([]float32, m.columns), make([]int8, m.columns)
	row, heaviest := 0, 1
	for _, part := range m.parts {
		dims := ts.Dims(part)
		if len(dims) != 2 || dims[0] != uint64(m.columns) || dims[1] > uint64(m.rows-row) {
			return 0, mismatch(part, dims, m.columns, m.rows)
		}
		for r := range int(dims[1]) {
			if err := ts.Row(part, r, x); err != nil {
				return 0, unreadable(part, err)
			}
			scale, ok := quantiseRow(x, q)
			if !ok {
				return 0, notFinite(part, r)
			}
			heaviest = max(heaviest, putRow(dst, m, row, q, scale))
			row++
		}
	}
	if m.rows-row >= tileRows {
		return 0, mismatch(m.parts[0], ts.Dims(m.parts[0]), m.columns, m.rows)
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

func mismatch(name string, dims []uint64, want ...int) error {
	if dims == nil {
		return fmt.Errorf("%w: the model file lacks tensor %s", inference.ErrModelUnavailable, name)
	}
	return fmt.Errorf("%w: tensor %s has dimensions %v, which do not fit %v", inference.ErrModelUnavailable, name, dims, want)
}

func unreadable(name string, err error) error {
	return fmt.Errorf("%w: reading tensor %s: %w", inference.ErrModelUnavailable, name, err)
}

func notFinite(name string, row int) error {
	return fmt.Errorf("%w: row %d of tensor %s is not finite: the file is damaged, fetch it again", inference.ErrModelUnavailable, row, name)
}

// checkLimits refuses weights whose activation limits are not sane, so that the guest never divides by zero.
func checkLimits(w *weightLayout, weights []byte) error {
	for i := range w.matrices {
		limit := math.Float32frombits(binary.LittleEndian.Uint32(weights[w.limits+uint64(i)*4:]))
		if !(limit >= 1 && limit <= math.MaxInt16) {
			return fmt.Errorf("activation limit %g of matrix %v", limit, slices.Concat(w.matrices[i].parts))
		}
	}
	return nil
}

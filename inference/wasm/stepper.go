package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"unsafe"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/gguf"
)

// Stepper is a Llama-family model in one instance of the guest. It implements inference.Stepper; only MemoryBytes may
// be called while another method runs.
//
// Rules that Step enforces before the guest sees a row:
//
//  1. Tokens, slots and positions are within the model's bounds.
//  2. A slot has no gaps: a row's position is at most one beyond what the slot holds, and writing a position forgets
//     what the slot held after it. A slot therefore never attends to what an earlier user of it left behind.
type Stepper struct {
	shape   shape
	options Options
	plan    *memoryPlan
	memory  *linearMemory
	guest   *guestRuntime
	module  api.Module
	step    api.Function
	stack   [1]uint64
	logits  [][]float32 // reused by Step
	held    []int       // positions that each slot holds
	spans   []span      // of each slot, in the step being validated
	broken  error       // why no step can run any more

	residentBlocks []int        // of each slot's cache, touched so far
	residentBytes  atomic.Int64 // of all memory
}

var _ inference.Stepper = (*Stepper)(nil)

// span is the positions of a slot that a step writes.
type span struct{ first, next int }

// Source is what a stepper is loaded from. It is not needed once the stepper is open.
type Source struct {
	File *gguf.File
	// SHA256 of the file: what the caller has verified. Packed weights in the cache folder are used only if they
	// were made from the same.
	SHA256 [sha256.Size]byte
	// Cache is a folder that belongs to its owner alone. It is made if it does not exist.
	Cache string
	// Progress, if not nil, hears of bytes of weights done. It is not called concurrently.
	Progress func(done, total int64)
}

// OpenStepper makes a model ready: from the packed weights in the cache folder, or from the model file, leaving packed
// weights for the next time. Errors wrap inference.ErrModelUnavailable, inference.ErrInvalidRequest (options) or the
// cause of ctx.
func OpenStepper(ctx context.Context, src Source, o Options) (*Stepper, error) {
	return openStepper(ctx, src, llamaGuest(), o)
}

func openStepper(ctx context.Context, src Source, g guestModule, o Options) (_ *Stepper, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	shape, err := readShape(src.File)
	if err != nil {
		return nil, err
	}
	o.Context = min(o.Context, shape.TrainedContext)
	plan, err := planMemory(shape, o)
	if err != nil {
		return nil, err
	}
	s := &Stepper{shape: shape, options: o, plan: plan, held: make([]int, o.Slots), spans: make([]span, o.Slots), residentBlocks: make([]int, o.Slots)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.memory, err = reserveMemory(plan.totalBytes, plan.kv); err != nil {
		return nil, fmt.Errorf("%w: %w", inference.ErrModelUnavailable, err)
	}
	if err := s.loadWeights(ctx, src); err != nil {
		return nil, err
	}
	if err := s.startGuest(ctx, g, src.Cache); err != nil {
		return nil, fmt.Errorf("%w: %w", inference.ErrModelUnavailable, err)
	}
	s.residentBytes.Store(int64(plan.kv))
	return s, nil
}

// loadWeights fills the weights. The image is a cache: whatever is wrong with it is logged and mended.
func (s *Stepper) loadWeights(ctx context.Context, src Source) error {
	w, log := s.plan.weights, s.options.Logger
	weights := s.memory.bytes[weightBase : weightBase+w.size]
	id := identify(src.SHA256, s.shape, w)
	path := id.path(src.Cache)
	err := readImage(ctx, path, id, weights, src.Progress)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, fs.ErrNotExist):
		log.Info("packing weights", "image", path)
	default:
		log.Warn("packing weights again", "image", path, "err", err)
	}
	clear(weights)
	if err := packWeights(ctx, src.File, w, weights, src.Progress); err != nil {
		return err
	}
	if err := writeImage(ctx, path, id, weights); err != nil {
		log.Warn("the packed weights could not be kept: the next start packs them again", "image", path, "err", err)
	}
	return nil
}

func (s *Stepper) startGuest(ctx context.Context, g guestModule, cache string) error {
	var err error
	if s.guest, err = compileGuest(ctx, g, cache, s.options.Logger); err != nil {
		return err
	}
	if len(s.guest.code.ExportedMemories()) != 1 {
		return errors.New("the guest exports no memory")
	}
	s.module, err = s.guest.runtime.InstantiateModule(experimental.WithMemoryAllocator(ctx, s.memory), s.guest.code,
		wazero.NewModuleConfig().WithName(""))
	if err != nil {
		return fmt.Errorf("starting the guest: %w", err)
	}
	memory := s.module.Memory()
	if own := memory.Size(); own > weightBase {
		return fmt.Errorf("the guest's own data takes %d bytes, more than the %d set aside", own, weightBase)
	}
	if _, ok := memory.Grow(uint32(s.plan.totalBytes/pageBytes) - memory.Size()/pageBytes); !ok {
		return fmt.Errorf("growing the guest's memory to %d MiB failed", s.plan.totalBytes>>20)
	}
	config, layers := guestTables(s.shape, s.options, s.plan, s.memory.bytes)
	for _, check := range []struct {
		function string
		want     uint64
	}{{"abi_version", abiVersion}, {"config_size", uint64(len(config))}} {
		if got, err := s.guestCall(ctx, check.function); err != nil {
			return err
		} else if got != check.want {
			return fmt.Errorf("the guest's %s is %d, this program needs %d", check.function, got, check.want)
		}
	}
	at, err := s.guestCall(ctx, "config")
	if err != nil {
		return err
	}
	if at+uint64(len(config)) > weightBase {
		return fmt.Errorf("the guest's config lies at %d, outside its own data", at)
	}
	copy(s.memory.bytes[at:], config)
	copy(s.memory.bytes[s.plan.layers:], layers)
	fillRope(s.shape, s.options, s.plan, s.memory.bytes)
	if _, err := s.guestCall(ctx, "init"); err != nil {
		return err
	}
	if s.step = s.module.ExportedFunction("step"); s.step == nil {
		return errors.New("the guest exports no step")
	}
	return nil
}

// guestCall calls a function of the guest without arguments and returns its result, or 0 if it has none.
func (s *Stepper) guestCall(ctx context.Context, name string) (uint64, error) {
	f := s.module.ExportedFunction(name)
	if f == nil {
		return 0, fmt.Errorf("the guest exports no %s", name)
	}
	results, err := f.Call(ctx)
	if err != nil {
		return 0, fmt.Errorf("calling the guest's %s: %w", name, err)
	}
	if len(results) == 0 {
		return 0, nil
	}
	return results[0], nil
}

// Slots implements inference.Stepper.
func (s *Stepper) Slots() int { return s.options.Slots }

// MaxRows implements inference.Stepper.
func (s *Stepper) MaxRows() int { return s.options.MaxRows }

// MaxLogits implements inference.Stepper.
func (s *Stepper) MaxLogits() int { return s.options.MaxLogits }

// Context implements inference.Stepper.
func (s *Stepper) Context() int { return s.options.Context }

// Vocabulary implements inference.Stepper.
func (s *Stepper) Vocabulary() int { return s.shape.Vocabulary }

// MemoryBytes returns the memory that is resident: weights, scratch, and as much key-value cache as has been used.
func (s *Stepper) MemoryBytes() int64 { return s.residentBytes.Load() }

// Step implements inference.Stepper. Invalid rows are refused with ErrInvalidRequest and change nothing. When ctx is
// done the guest stops within a millisecond of work and the next step is unaffected; the slots of the abandoned
// rows hold what they held before the first of them.
func (s *Stepper) Step(ctx context.Context, rows []inference.Row) ([][]float32, error) {
	if s.broken != nil {
		return nil, s.broken
	}
	if err := s.validate(rows); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	wanted := s.putRows(rows)
	s.stack[0] = uint64(len(rows))
	if err := s.step.CallWithStack(ctx, s.stack[:]); err != nil {
		s.broken = fmt.Errorf("%w: the guest failed: %w", inference.ErrModelUnavailable, err)
		return nil, s.broken
	}
	if s.stack[0] != 0 {
		return nil, context.Cause(ctx)
	}
	for _, r := range rows {
		s.held[r.Slot] = int(r.Position) + 1
	}
	return s.viewLogits(wanted), nil
}

// validate checks rows and cuts what their slots hold back to before the first of them.
func (s *Stepper) validate(rows []inference.Row) error {
	if len(rows) > s.options.MaxRows {
		return invalid("a step has %d rows, at most %d fit", len(rows), s.options.MaxRows)
	}
	clear(s.spans)
	wanted := 0
	for i, r := range rows {
		if int64(r.Token) >= int64(s.shape.Vocabulary) || int64(r.Slot) >= int64(s.options.Slots) || int64(r.Position) >= int64(s.options.Context) {
			return invalid("row %d has token %d, slot %d, position %d; the model has %d tokens, %d slots, %d positions",
				i, r.Token, r.Slot, r.Position, s.shape.Vocabulary, s.options.Slots, s.options.Context)
		}
		position, in := int(r.Position), &s.spans[r.Slot]
		switch {
		case in.next == 0 && position > s.held[r.Slot]:
			return invalid("row %d is at position %d of slot %d, which holds %d positions", i, position, r.Slot, s.held[r.Slot])
		case in.next == 0:
			in.first = position
		case position != in.next:
			return invalid("row %d is at position %d of slot %d, after position %d", i, position, r.Slot, in.next-1)
		}
		in.next = position + 1
		if r.Logits {
			wanted++
		}
	}
	if wanted > s.options.MaxLogits {
		return invalid("a step wants %d rows' logits, at most %d fit", wanted, s.options.MaxLogits)
	}
	for slot, in := range s.spans {
		if in.next > 0 {
			s.held[slot] = in.first
			s.touch(slot, in.next)
		}
	}
	return nil
}

// touch accounts for the blocks of a slot's cache that positions make resident.
func (s *Stepper) touch(slot, positions int) {
	if blocks := roundUp(positions, kvBlock) / kvBlock; blocks > s.residentBlocks[slot] {
		s.residentBytes.Add(int64(blocks-s.residentBlocks[slot]) * int64(s.plan.kvBlockBytes))
		s.residentBlocks[slot] = blocks
	}
}

// putRows writes the guest's rows and returns how many want logits.
func (s *Stepper) putRows(rows []inference.Row) (wanted int) {
	b := s.memory.bytes[s.plan.rows:]
	for i, r := range rows {
		want := uint32(0)
		if r.Logits {
			want = 1
			wanted++
		}
		for j, v := range [4]uint32{r.Token, r.Slot, r.Position, want} {
			binary.LittleEndian.PutUint32(b[i*guestRowBytes+j*4:], v)
		}
	}
	return wanted
}

// viewLogits returns the first n rows of logits where the guest left them.
func (s *Stepper) viewLogits(n int) [][]float32 {
	s.logits = s.logits[:0]
	for i := range n {
		at := s.plan.logits + uint64(i)*uint64(s.plan.logitsStride)*4
		s.logits = append(s.logits, unsafe.Slice((*float32)(unsafe.Pointer(&s.memory.bytes[at])), s.shape.Vocabulary))
	}
	return s.logits
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", inference.ErrInvalidRequest, fmt.Sprintf(format, args...))
}

// Close frees the memory; logits of earlier steps must not be touched any more. Closing twice is harmless.
func (s *Stepper) Close() error {
	s.broken = fmt.Errorf("step: %w", inference.ErrClosed)
	s.residentBytes.Store(0)
	var err error
	if s.guest != nil {
		err = s.guest.close(context.Background())
		s.guest = nil
	}
	if s.memory != nil {
		err = errors.Join(err, s.memory.close())
		s.memory = nil
	}
	return err
}

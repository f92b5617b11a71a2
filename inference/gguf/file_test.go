package gguf_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/gguf/gguftest"
)

// sound is a file with a bit of everything.
func sound() []byte {
	return gguftest.New().
		Set("general.architecture", "llama").
		Set("general.alignment", uint32(32)).
		Set("llama.block_count", uint32(2)).
		Set("llama.rope.freq_base", float32(1e4)).
		Set("tokenizer.ggml.tokens", []string{"a", "bc", ""}).
		Set("tokenizer.ggml.scores", []float32{0, -1, -2}).
		Set("tokenizer.ggml.token_type", []int32{1, 1, 3}).
		Set("tokenizer.ggml.add_bos_token", true).
		Tensor("norm", gguf.F32, gguftest.Floats(1, 2, 3), 3).
		Tensor("weight", gguf.Q8_0, bytes.Repeat([]byte{0, 0x3c, 1}, 68)[:68], 32, 2).
		Bytes()
}

func TestGetters(t *testing.T) {
	f := open(t, gguftest.New().
		Set("str", "s").Set("yes", true).Set("five", uint32(5)).Set("minus", int16(-5)).Set("huge", uint64(1<<63)).
		Set("half", float32(.5)).Set("strs", []string{"a", "b"}).Set("ints", []int32{-1, 2}).Set("huges", []uint64{1 << 63}).
		Set("floats", []float32{.5}).Set("bools", []bool{true, false}).
		Bytes())
	getters := map[string]func(key string) (any, error){
		"String":  func(k string) (any, error) { return f.String(k) },
		"Bool":    func(k string) (any, error) { return f.Bool(k) },
		"Uint":    func(k string) (any, error) { return f.Uint(k) },
		"Int":     func(k string) (any, error) { return f.Int(k) },
		"Float":   func(k string) (any, error) { return f.Float(k) },
		"Strings": func(k string) (any, error) { return f.Strings(k) },
		"Ints":    func(k string) (any, error) { return f.Ints(k) },
		"Floats":  func(k string) (any, error) { return f.Floats(k) },
		"Bools":   func(k string) (any, error) { return f.Bools(k) },
	}
	// What each getter returns for each key; where there is nothing it fails with ErrType.
	want := map[string]map[string]any{
		"str":    {"String": "s"},
		"yes":    {"Bool": true},
		"five":   {"Uint": uint64(5), "Int": int64(5)},
		"minus":  {"Int": int64(-5)},
		"huge":   {"Uint": uint64(1 << 63)},
		"half":   {"Float": .5},
		"strs":   {"Strings": []string{"a", "b"}},
		"ints":   {"Ints": []int64{-1, 2}},
		"huges":  {},
		"floats": {"Floats": []float64{.5}},
		"bools":  {"Bools": []bool{true, false}},
	}
	for _, key := range f.Keys() {
		for name, get := range getters {
			got, err := get(key)
			if expected, ok := want[key][name]; ok {
				if err != nil || !reflect.DeepEqual(got, expected) {
					t.Errorf("%s(%s) = %v, %v, want %v", name, key, got, err, expected)
				}
			} else if !errors.Is(err, gguf.ErrType) {
				t.Errorf("%s(%s) = %v, %v, want ErrType", name, key, got, err)
			}
		}
		if !f.Has(key) {
			t.Errorf("Has(%s) is false", key)
		}
	}
	for name, get := range getters {
		if _, err := get("absent"); !errors.Is(err, gguf.ErrNotFound) {
			t.Errorf("%s(absent): %v, want ErrNotFound", name, err)
		}
	}
	if _, err := f.Tensor("absent"); !errors.Is(err, gguf.ErrNotFound) || !strings.Contains(err.Error(), `test.gguf: tensor "absent"`) {
		t.Errorf("Tensor(absent): %v", err)
	}
}

// TestTruncated cuts a sound file at every byte.
func TestTruncated(t *testing.T) {
	data := sound()
	open(t, data)
	for n := range data {
		_, err := gguf.New(bytes.NewReader(data[:n]), int64(n), "cut.gguf")
		if !errors.Is(err, gguf.ErrFormat) || !strings.HasPrefix(err.Error(), "gguf: cut.gguf: offset ") {
			t.Fatalf("cut to %d of %d bytes: %v, want ErrFormat with file and offset", n, len(data), err)
		}
	}
}

// TestDamaged changes every byte of a sound file: that gives an error or a file whose tensors can be read.
func TestDamaged(t *testing.T) {
	data := sound()
	for at := range data {
		for _, bit := range []byte{1, 0x40, 0x80, 0xff} {
			damaged := bytes.Clone(data)
			damaged[at] ^= bit
			exercise(t, damaged)
		}
	}
}

// TestHostileMemory opens files that announce far more than they hold.
func TestHostileMemory(t *testing.T) {
	preamble := func(tensors, keys uint64) *gguftest.Raw {
		r := new(gguftest.Raw)
		return r.Bytes([]byte("GGUF")).U32(3).U64(tensors).U64(keys)
	}
	for name, r := range map[string]*gguftest.Raw{
		"keys":    preamble(0, 1<<16).Bytes(make([]byte, 100)),
		"tensors": preamble(1<<16, 0).Bytes(make([]byte, 100)),
		"key":     preamble(0, 1).U64(1 << 16).Bytes(make([]byte, 100)),
		"string":  preamble(0, 1).String("k").U32(8).U64(1 << 24).Bytes(make([]byte, 100)),
		"strings": preamble(0, 1).String("k").U32(9).U32(8).U64(1 << 50).Bytes(make([]byte, 100)),
		"numbers": preamble(0, 1).String("k").U32(9).U32(12).U64(1 << 61).Bytes(make([]byte, 100)),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := gguf.New(bytes.NewReader(r.Buffer.Bytes()), int64(r.Len()), "hostile.gguf")
			runtime.ReadMemStats(&after)
			if !errors.Is(err, gguf.ErrFormat) {
				t.Errorf("%v, want ErrFormat", err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("it took %d bytes of memory to find that out", n)
			}
		})
	}
}

// TestLongHeader opens a sparse file whose metadata goes on beyond what any header may hold.
func TestLongHeader(t *testing.T) {
	const length = 15 << 20
	path := filepath.Join(t.TempDir(), "sparse.gguf")
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	r := new(gguftest.Raw)
	r.Bytes([]byte("GGUF")).U32(3).U64(0).U64(20)
	at := int64(0)
	for i := range 20 {
		r.String(fmt.Sprint("key", i)).U32(uint32(gguf.KindString)).U64(length)
		if _, err := w.WriteAt(r.Buffer.Bytes(), at); err != nil {
			t.Fatal(err)
		}
		at += int64(r.Len()) + length
		r = new(gguftest.Raw)
	}
	if err := errors.Join(w.Truncate(at), w.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = gguf.Open(path)
	if !errors.Is(err, gguf.ErrFormat) || !strings.Contains(err.Error(), "in front of the tensors exceeds") {
		t.Errorf("%v, want ErrFormat for the length of the header", err)
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := gguf.Open(filepath.Join(dir, "absent.gguf")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent file: %v", err)
	}
	if _, err := gguf.Open(dir); !errors.Is(err, gguf.ErrFormat) {
		t.Errorf("a folder: %v", err)
	}
	path := filepath.Join(dir, "sound.gguf")
	if err := os.WriteFile(path, sound(), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if f.Name() != path || f.Size() != int64(len(sound())) {
		t.Errorf("name %s, size %d", f.Name(), f.Size())
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Tensors()[0].Row(0, make([]float32, 3)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a row after Close: %v", err)
	}
}

// faulty fails reads from an offset on.
type faulty struct {
	io.ReaderAt
	from int64
}

var errDisk = errors.New("disk on fire")

func (r faulty) ReadAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > r.from {
		n := max(0, min(int64(len(b)), r.from-off))
		m, _ := r.ReaderAt.ReadAt(b[:n], off)
		return m, errDisk
	}
	return r.ReaderAt.ReadAt(b, off)
}

func TestReadErrors(t *testing.T) {
	data := sound()
	f := open(t, data)
	weight, err := f.Tensor("weight")
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []int64{0, 5, 100, f.Tensors()[0].Offset() - 40} {
		if _, err := gguf.New(faulty{bytes.NewReader(data), from}, int64(len(data)), "x"); !errors.Is(err, errDisk) {
			t.Errorf("a disk that fails at %d: %v", from, err)
		}
	}
	f, err = gguf.New(shortBlocks{faulty{bytes.NewReader(data), weight.Offset() + 50}}, int64(len(data)), "x")
	if err != nil {
		t.Fatal(err)
	}
	weight, _ = f.Tensor("weight")
	if err := weight.Row(0, make([]float32, 32)); err != nil {
		t.Errorf("row 0, in front of the fault: %v", err)
	}
	if err := weight.Row(1, make([]float32, 32)); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), `tensor "weight"`) {
		t.Errorf("row 1, in the fault: %v", err)
	}
}

// shortBlocks reads at most 64 bytes at a time, as buffered reading ahead would otherwise meet the fault early.
type shortBlocks struct{ io.ReaderAt }

func (r shortBlocks) ReadAt(b []byte, off int64) (int, error) {
	if n := min(len(b), 64); n < len(b) && len(b) > 1<<12 {
		return r.ReaderAt.ReadAt(b[:n], off)
	}
	return r.ReaderAt.ReadAt(b, off)
}

// TestShrunk reads from a file that was cut after it was opened.
func TestShrunk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shrunk.gguf")
	if err := os.WriteFile(path, sound(), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, f.Size()-1); err != nil {
		t.Fatal(err)
	}
	if err := f.Tensors()[1].Row(1, make([]float32, 32)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v, want unexpected EOF", err)
	}
}

func TestRows(t *testing.T) {
	f := open(t, gguftest.New().
		Tensor("x", gguf.F32, gguftest.Floats(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 2, 3, 2).
		Tensor("iq", gguf.Type(16), make([]byte, 66), 256).
		Bytes())
	x, _ := f.Tensor("x")
	if x.Columns() != 2 || x.Rows() != 6 || x.Size() != 48 || x.Offset()%32 != 0 {
		t.Errorf("%d columns, %d rows, %d bytes at %d", x.Columns(), x.Rows(), x.Size(), x.Offset())
	}
	got := make([]float32, 6)
	if err := x.ReadRows(2, got); err != nil || fmt.Sprint(got) != "[5 6 7 8 9 10]" {
		t.Errorf("rows 2 to 4: %v, %v", got, err)
	}
	if err := x.ReadRows(6, nil); err != nil {
		t.Errorf("no rows at the end: %v", err)
	}
	for _, bad := range []struct{ row, n int }{{-1, 2}, {6, 2}, {5, 4}, {0, 14}, {0, 3}, {math.MaxInt, 2}} {
		if err := x.ReadRows(bad.row, make([]float32, bad.n)); err == nil {
			t.Errorf("%d elements from row %d on: no error", bad.n, bad.row)
		}
	}
	if err := x.Row(0, make([]float32, 4)); err == nil {
		t.Error("one row into room for two: no error")
	}
	stored, err := io.ReadAll(x.Data())
	if err != nil || !bytes.Equal(stored, gguftest.Floats(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)) {
		t.Errorf("data %x, %v", stored, err)
	}
	iq, _ := f.Tensor("iq")
	if iq.Type().Dequantizable() {
		t.Error("IQ2_XXS claims to be dequantizable")
	}
	if err := iq.Row(0, make([]float32, 256)); !errors.Is(err, gguf.ErrUnsupported) {
		t.Errorf("a row of IQ2_XXS: %v, want ErrUnsupported", err)
	}
}

// TestConcurrentRows is for the race detector too.
func TestConcurrentRows(t *testing.T) {
	const columns, rows = 64, 50
	var all []float32
	for i := range columns * rows {
		all = append(all, float32(i))
	}
	f := open(t, gguftest.New().Tensor("x", gguf.F32, gguftest.Floats(all...), columns, rows).Bytes())
	x, _ := f.Tensor("x")
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range rows {
				n := 1 + (i+g)%3
				dst := make([]float32, n*columns)
				at := min(i, rows-n)
				if err := x.ReadRows(at, dst); err != nil || !reflect.DeepEqual(dst, all[at*columns:(at+n)*columns]) {
					t.Errorf("rows %d to %d are wrong: %v", at, at+n, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestRoundTrip reads back whatever gguftest can write.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := gguftest.New().Version(rapid.SampledFrom([]uint32{2, 3}).Draw(t, "version"))
		if rapid.Bool().Draw(t, "aligned") {
			w.Align(1 << rapid.Uint32Range(0, 10).Draw(t, "alignment"))
		}
		names := rapid.SliceOfNDistinct(rapid.StringN(1, 20, 200), 0, 8, rapid.ID).Draw(t, "names")
		strs := map[string][]string{}
		for _, name := range names {
			strs[name] = rapid.SliceOfN(rapid.String(), 0, 20).Draw(t, "strings")
			if name != "general.alignment" {
				w.Set(name, strs[name])
			}
		}
		floats := map[string][]float32{}
		for _, name := range names {
			columns, rows := rapid.IntRange(1, 9).Draw(t, "columns"), rapid.IntRange(1, 9).Draw(t, "rows")
			floats[name] = rapid.SliceOfN(rapid.Float32(), columns*rows, columns*rows).Draw(t, "floats")
			w.Tensor(name, gguf.F32, gguftest.Floats(floats[name]...), uint64(columns), uint64(rows))
		}
		data := w.Bytes()
		f, err := gguf.New(bytes.NewReader(data), int64(len(data)), "test.gguf")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			got, err := f.Strings(name)
			if err != nil || !equal(got, strs[name]) {
				t.Fatalf("%q: %q, %v, want %q", name, got, err, strs[name])
			}
			x, err := f.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			row := make([]float32, x.Rows()*x.Columns())
			if err := x.ReadRows(0, row); err != nil || !equal(row, floats[name]) {
				t.Fatalf("%q: %v, %v, want %v", name, row, err, floats[name])
			}
		}
	})
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// exercise opens data and reads all of what it claims to hold, in bounded portions.
func exercise(t testing.TB, data []byte) {
	f, err := gguf.New(bytes.NewReader(data), int64(len(data)), "fuzz.gguf")
	if err != nil {
		if !errors.Is(err, gguf.ErrFormat) && !errors.Is(err, gguf.ErrUnsupported) {
			t.Fatalf("%v wraps neither ErrFormat nor ErrUnsupported", err)
		}
		return
	}
	for _, key := range f.Keys() {
		n := 0
		for _, err := range []error{
			second(f.String(key)), second(f.Bool(key)), second(f.Int(key)), second(f.Uint(key)), second(f.Float(key)),
			second(f.Strings(key)), second(f.Ints(key)), second(f.Floats(key)), second(f.Bools(key)),
		} {
			if err == nil {
				n++
			} else if !errors.Is(err, gguf.ErrType) {
				t.Fatal(err)
			}
		}
		if n > 2 {
			t.Fatalf("%d getters return the value of %q", n, key)
		}
	}
	for _, x := range f.Tensors() {
		if x.Offset() < 0 || x.Size() < 1 || x.Offset()+x.Size() > int64(len(data)) {
			t.Fatalf("tensor %q takes %d bytes at %d of %d", x.Name(), x.Size(), x.Offset(), len(data))
		}
		if !x.Type().Dequantizable() {
			continue
		}
		row := make([]float32, x.Columns())
		for _, i := range []int{0, x.Rows() - 1} {
			if err := x.Row(i, row); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }

func FuzzOpen(f *testing.F) {
	f.Add(sound())
	f.Add(sound()[:60])
	f.Add(gguftest.New().Version(2).Align(8).Set("a", []uint64{1}).Tensor("x", gguf.Q6_K, make([]byte, 420), 256, 2).Bytes())
	f.Fuzz(func(t *testing.T, data []byte) { exercise(t, data) })
}

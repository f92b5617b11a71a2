package gguf_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-ai/holdfast/inference/gguf"
	"github.com/holdfast-ai/holdfast/inference/gguf/gguftest"
	"github.com/holdfast-ai/holdfast/internal/testmodel"
)

var dequantizable = []gguf.Type{
	gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K,
}

// TestVectors compares floats, bit for bit, with what another implementation made of the same bytes.
func TestVectors(t *testing.T) {
	types, others := map[string]gguf.Type{}, map[string]int{}
	for _, typ := range dequantizable {
		types[typ.String()] = typ
	}
	for _, line := range vectors(t) {
		kind, rest := line[0], line[1:]
		others[kind]++
		switch kind {
		case "block":
			typ, ok := types[rest[0]]
			if !ok {
				t.Fatalf("no type %s", rest[0])
			}
			delete(types, rest[0])
			if got := hex.EncodeToString(gguftest.Floats(dequantize(t, typ, unhex(t, rest[1]))...)); got != rest[2] {
				t.Errorf("%s:\n got %s\nwant %s", rest[0], got, rest[2])
			}
		case "halves":
			if got := sum(finiteHalves(t)); got != rest[0] {
				t.Errorf("all halves: floats have the SHA-256 %s, want %s", got, rest[0])
			}
		case "tensor":
			compareTensor(t, rest[0], rest[1], rest[2])
		}
	}
	if len(types) > 0 || others["halves"] != 1 || others["tensor"] < 4 {
		t.Errorf("vectors are missing: of types %v; there are %v", types, others)
	}
}

// dequantize reads stored as the one row of a tensor.
func dequantize(t testing.TB, typ gguf.Type, stored []byte) []float32 {
	t.Helper()
	elements, size := typ.Block()
	row := make([]float32, len(stored)/size*elements)
	f := open(t, gguftest.New().Tensor("x", typ, stored, uint64(len(row))).Bytes())
	x, err := f.Tensor("x")
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Row(0, row); err != nil {
		t.Fatal(err)
	}
	return row
}

func finiteHalves(t *testing.T) []float32 {
	var stored []byte
	for h := range 1 << 16 {
		stored = binary.LittleEndian.AppendUint16(stored, uint16(h))
	}
	var finite []float32
	for i, x := range dequantize(t, gguf.F16, stored) {
		if isNaN := i&0x7c00 == 0x7c00 && i&0x3ff != 0; isNaN != math.IsNaN(float64(x)) {
			t.Fatalf("half %#x is %v", i, x)
		} else if !isNaN {
			finite = append(finite, x)
		}
	}
	return finite
}

// compareTensor reads a tensor of the real model in uneven portions.
func compareTensor(t *testing.T, name, typ, want string) {
	f, err := gguf.Open(testmodel.Path(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := f.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	if x.Type().String() != typ {
		t.Errorf("%s is %s, want %s", name, x.Type(), typ)
	}
	h := sha256.New()
	for i := 0; i < x.Rows(); {
		rows := make([]float32, min(701, x.Rows()-i)*x.Columns())
		if err := x.ReadRows(i, rows); err != nil {
			t.Fatal(err)
		}
		h.Write(gguftest.Floats(rows...))
		i += len(rows) / x.Columns()
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("%s: floats have the SHA-256 %s, want %s", name, got, want)
	}
}

func vectors(t *testing.T) (lines [][]string) {
	data, err := os.ReadFile("testdata/dequantize.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(bytes.NewReader(data))
	s.Buffer(nil, len(data))
	for s.Scan() {
		lines = append(lines, strings.Fields(s.Text()))
	}
	return lines
}

func sum(x []float32) string {
	s := sha256.Sum256(gguftest.Floats(x...))
	return hex.EncodeToString(s[:])
}

func unhex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func open(t testing.TB, data []byte) *gguf.File {
	t.Helper()
	f, err := gguf.New(bytes.NewReader(data), int64(len(data)), "test.gguf")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

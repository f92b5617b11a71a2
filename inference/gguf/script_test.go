package gguf

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"encoding/binary"
	"math"

	"github.com/cockroachdb/datadriven"
)

// TestOpen runs the scripts in testdata/open. Each case writes a file field by field and shows what is read from it, or
// the error. Fields:
//
//	head TENSORS KEYS       magic, version 3 and the two counts
//	text T                  the bytes of T
//	u8|u32|u64 N…           numbers, little-endian
//	str T                   length and bytes; T may be quoted
//	key NAME KIND VALUE…    a key; KIND is u8 i8 u16 i16 u32 i32 f32 bool str u64 i64 f64, or [KIND] for an array
//	tensor NAME TYPE OFFSET DIMENSION…
//	align N                 zeros up to a multiple of N
//	zeros N
func TestOpen(t *testing.T) {
	datadriven.Walk(t, "testdata/open", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			data := assemble(t, d)
			f, err := New(bytes.NewReader(data), int64(len(data)), "test.gguf")
			if err != nil {
				return err.Error() + "\n"
			}
			return describe(f)
		})
	})
}

func describe(f *File) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version %d, alignment %d, data at %d\n", f.Version(), f.alignment, f.data)
	for _, key := range f.Keys() {
		fmt.Fprintf(&b, "%s: %s %s\n", key, f.values[key].describe(), show(f, key))
	}
	for _, x := range f.Tensors() {
		fmt.Fprintf(&b, "%s: %s %v, %d bytes at %d\n", x.Name(), x.Type(), x.Dims(), x.Size(), x.Offset())
	}
	return b.String()
}

// show formats a value by way of the getter that suits it.
func show(f *File, key string) string {
	var getters = []func() (any, error){
		func() (any, error) { return f.Bool(key) },
		func() (any, error) { v, err := f.String(key); return strconv.Quote(v), err },
		func() (any, error) { return f.Int(key) },
		func() (any, error) { return f.Uint(key) },
		func() (any, error) { return f.Float(key) },
		func() (any, error) { v, err := f.Strings(key); return fmt.Sprintf("%q", v), err },
		func() (any, error) { return f.Bools(key) },
		func() (any, error) { return f.Ints(key) },
		func() (any, error) { return f.Floats(key) },
	}
	for _, get := range getters {
		if v, err := get(); err == nil {
			return fmt.Sprint(v)
		}
	}
	return "?"
}

func assemble(t *testing.T, d *datadriven.TestData) []byte {
	var b []byte
	for line := range strings.SplitSeq(d.Input, "\n") {
		op, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		args := strings.Fields(rest)
		switch op {
		case "":
		case "head":
			b = append(b, "GGUF\x03\x00\x00\x00"...)
			b = appendNumbers(t, d, b, KindUint64, args)
		case "text":
			b = append(b, rest...)
		case "u8", "u32", "u64":
			b = appendNumbers(t, d, b, kindNamed[op], args)
		case "str":
			b = appendString(b, unquoted(rest))
		case "zeros":
			b = append(b, make([]byte, int(number(t, d, args[0])))...)
		case "align":
			n := int(number(t, d, args[0]))
			b = append(b, make([]byte, (n-len(b)%n)%n)...)
		case "key":
			name, value, _ := strings.Cut(rest, " ")
			b = appendValue(t, d, appendString(b, unquoted(name)), value)
		case "tensor":
			b = appendString(b, unquoted(args[0]))
			b = binary.LittleEndian.AppendUint32(b, uint32(len(args)-3))
			b = appendNumbers(t, d, b, KindUint64, args[3:])
			b = binary.LittleEndian.AppendUint32(b, uint32(typeNamed(args[1])))
			b = appendNumbers(t, d, b, KindUint64, args[2:3])
		default:
			d.Fatalf(t, "unknown field %q", op)
		}
	}
	return b
}

var kindNamed = map[string]Kind{
	"u8": KindUint8, "i8": KindInt8, "u16": KindUint16, "i16": KindInt16, "u32": KindUint32, "i32": KindInt32,
	"f32": KindFloat32, "bool": KindBool, "str": KindString, "u64": KindUint64, "i64": KindInt64, "f64": KindFloat64,
}

func appendValue(t *testing.T, d *datadriven.TestData, b []byte, text string) []byte {
	name, rest, _ := strings.Cut(text, " ")
	element, array := strings.CutPrefix(strings.TrimSuffix(name, "]"), "[")
	kind, ok := kindNamed[element]
	if !ok {
		d.Fatalf(t, "unknown kind %q", name)
	}
	values := strings.Fields(rest)
	if array {
		b = binary.LittleEndian.AppendUint32(b, uint32(KindArray))
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(kind))
	if array {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(values)))
	}
	if kind != KindString {
		return appendNumbers(t, d, b, kind, values)
	}
	if !array {
		values = []string{rest}
	}
	for _, v := range values {
		b = appendString(b, unquoted(v))
	}
	return b
}

func appendNumbers(t *testing.T, d *datadriven.TestData, b []byte, kind Kind, values []string) []byte {
	for _, v := range values {
		var bits uint64
		switch kind {
		case KindFloat32, KindFloat64:
			x, err := strconv.ParseFloat(v, 64)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			bits = math.Float64bits(x)
			if kind == KindFloat32 {
				bits = uint64(math.Float32bits(float32(x)))
			}
		default:
			bits = number(t, d, v)
		}
		b = append(b, binary.LittleEndian.AppendUint64(nil, bits)[:kind.size()]...)
	}
	return b
}

// number reads a number with a sign or without, or a power of two, such as 2^40.
func number(t *testing.T, d *datadriven.TestData, text string) uint64 {
	if exponent, ok := strings.CutPrefix(text, "2^"); ok {
		n, err := strconv.Atoi(exponent)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return 1 << n
	}
	if i, err := strconv.ParseInt(text, 0, 64); err == nil {
		return uint64(i)
	}
	u, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return u
}

func typeNamed(name string) Type {
	for t, l := range layouts {
		if l.name == name {
			return t
		}
	}
	n, _ := strconv.Atoi(name)
	return Type(n)
}

func unquoted(s string) string {
	if u, err := strconv.Unquote(s); err == nil {
		return u
	}
	return s
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

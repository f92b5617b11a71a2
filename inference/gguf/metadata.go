package gguf

import (
	"fmt"
	"math"
)

// Kind is the type of a metadata value, numbered as in the file.
type Kind uint32

// Kinds of values.
const (
	KindUint8 Kind = iota
	KindInt8
	KindUint16
	KindInt16
	KindUint32
	KindInt32
	KindFloat32
	KindBool
	KindString
	KindArray
	KindUint64
	KindInt64
	KindFloat64
)

var kindNames = [...]string{"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array", "uint64", "int64", "float64"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("type %d", uint32(k))
}

// size is the number of bytes of a number or bool, and 0 for anything else.
func (k Kind) size() int {
	switch k {
	case KindUint8, KindInt8, KindBool:
		return 1
	case KindUint16, KindInt16:
		return 2
	case KindUint32, KindInt32, KindFloat32:
		return 4
	case KindUint64, KindInt64, KindFloat64:
		return 8
	}
	return 0
}

// value is one value of the metadata. Which fields are set depends on kind and element.
type value struct {
	kind, element Kind
	at            int64  // offset of its key
	bits          uint64 // number or bool, zero-extended
	str           string
	strs          []string
	raw           []byte // encoded elements that are not strings
}

func (v value) describe() string {
	if v.kind == KindArray {
		return "array of " + v.element.String()
	}
	return v.kind.String()
}

// Keys returns the keys of the metadata in the order of the file. The slice is shared.
func (f *File) Keys() []string { return f.keys }

// Has reports whether there is a value for key, of whatever kind.
func (f *File) Has(key string) bool {
	_, ok := f.values[key]
	return ok
}

// String returns a string. This and the other getters fail with ErrNotFound if the key is absent and with ErrType if
// its value is of another type.
func (f *File) String(key string) (string, error) {
	v, err := f.get(key)
	if err != nil {
		return "", err
	}
	if v.kind != KindString {
		return "", f.mismatch(key, v, "a string")
	}
	return v.str, nil
}

// Bool returns a bool.
func (f *File) Bool(key string) (bool, error) {
	v, err := f.get(key)
	if err != nil {
		return false, err
	}
	if v.kind != KindBool {
		return false, f.mismatch(key, v, "a bool")
	}
	return v.bits == 1, nil
}

// Uint returns an integer of any width that is not negative.
func (f *File) Uint(key string) (uint64, error) {
	v, err := f.get(key)
	if err != nil {
		return 0, err
	}
	u, ok := unsigned(v.kind, v.bits)
	if !ok {
		return 0, f.mismatch(key, v, "a non-negative integer")
	}
	return u, nil
}

// Int returns an integer of any width that fits in 64 bits with a sign.
func (f *File) Int(key string) (int64, error) {
	v, err := f.get(key)
	if err != nil {
		return 0, err
	}
	i, ok := signed(v.kind, v.bits)
	if !ok {
		return 0, f.mismatch(key, v, "an integer of 64 bits")
	}
	return i, nil
}

// Float returns a float of either width.
func (f *File) Float(key string) (float64, error) {
	v, err := f.get(key)
	if err != nil {
		return 0, err
	}
	x, ok := float(v.kind, v.bits)
	if !ok {
		return 0, f.mismatch(key, v, "a float")
	}
	return x, nil
}

// Strings returns an array of strings. The slice is shared.
func (f *File) Strings(key string) ([]string, error) {
	v, err := f.get(key)
	if err != nil {
		return nil, err
	}
	if v.kind != KindArray || v.element != KindString {
		return nil, f.mismatch(key, v, "an array of strings")
	}
	return v.strs, nil
}

// Ints returns an array of integers of any width that fit in 64 bits with a sign.
func (f *File) Ints(key string) ([]int64, error) {
	return elements(f, key, "an array of integers", signed)
}

// Floats returns an array of floats of either width.
func (f *File) Floats(key string) ([]float64, error) {
	return elements(f, key, "an array of floats", float)
}

// Bools returns an array of bools.
func (f *File) Bools(key string) ([]bool, error) {
	return elements(f, key, "an array of bools", func(k Kind, b uint64) (bool, bool) { return b == 1, k == KindBool })
}

func elements[T any](f *File, key, want string, convert func(Kind, uint64) (T, bool)) ([]T, error) {
	v, err := f.get(key)
	if err != nil {
		return nil, err
	}
	size := v.element.size()
	if v.kind != KindArray || size == 0 {
		return nil, f.mismatch(key, v, want)
	}
	all := make([]T, len(v.raw)/size)
	for i := range all {
		x, ok := convert(v.element, bits(v.raw[i*size:(i+1)*size]))
		if !ok {
			return nil, f.mismatch(key, v, want)
		}
		all[i] = x
	}
	return all, nil
}

func (f *File) get(key string) (value, error) {
	v, ok := f.values[key]
	if !ok {
		return value{}, fmt.Errorf("gguf: %s: metadata %q: %w", f.name, key, ErrNotFound)
	}
	return v, nil
}

func (f *File) mismatch(key string, v value, want string) error {
	return fmt.Errorf("gguf: %s: offset %d: metadata %q is %s, not %s: %w", f.name, v.at, key, v.describe(), want, ErrType)
}

func signed(k Kind, b uint64) (int64, bool) {
	switch k {
	case KindInt8:
		return int64(int8(b)), true
	case KindInt16:
		return int64(int16(b)), true
	case KindInt32:
		return int64(int32(b)), true
	case KindInt64:
		return int64(b), true
	case KindUint8, KindUint16, KindUint32, KindUint64:
		return int64(b), b <= math.MaxInt64
	}
	return 0, false
}

func unsigned(k Kind, b uint64) (uint64, bool) {
	if k == KindUint64 {
		return b, true
	}
	i, ok := signed(k, b)
	return uint64(i), ok && i >= 0
}

func float(k Kind, b uint64) (float64, bool) {
	switch k {
	case KindFloat32:
		return float64(math.Float32frombits(uint32(b))), true
	case KindFloat64:
		return math.Float64frombits(b), true
	}
	return 0, false
}

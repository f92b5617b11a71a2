// Package gguftest writes GGUF files for tests, sound ones and damaged ones.
//
//	file := gguftest.New().
//		Set("general.architecture", "llama").
//		Set("llama.block_count", uint32(2)).
//		Tensor("token_embd.weight", gguf.F32, data, 64, 256)
//	f, err := gguf.New(bytes.NewReader(file.Bytes()), int64(len(file.Bytes())), "test.gguf")
//
// Damaged files are sound ones cut or changed afterwards, or are put together field by field with Raw.
package gguftest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/holdfast-ai/holdfast/inference/gguf"
)

// File is a file being written. The zero value is not usable; see New.
type File struct {
	version   uint32
	alignment int
	keys      []pair
	tensors   []tensor
}

type pair struct {
	key   string
	value any
}

type tensor struct {
	name string
	typ  gguf.Type
	data []byte
	dims []uint64
}

// New returns a file of version 3 without keys and tensors.
func New() *File { return &File{version: 3, alignment: 32} }

// Version sets the version.
func (f *File) Version(v uint32) *File {
	f.version = v
	return f
}

// Align sets the alignment of tensors and general.alignment.
func (f *File) Align(n uint32) *File {
	f.alignment = int(n)
	return f.Set("general.alignment", n)
}

// Set adds a key. value is a bool, a string, a sized integer or float, or a slice of those; anything else panics.
func (f *File) Set(key string, value any) *File {
	f.keys = append(f.keys, pair{key, value})
	return f
}

// Tensor adds a tensor whose stored bytes are data. The first dimension is that of a row.
func (f *File) Tensor(name string, typ gguf.Type, data []byte, dims ...uint64) *File {
	f.tensors = append(f.tensors, tensor{name, typ, data, dims})
	return f
}

// Floats encodes elements as F32.
func Floats(elements ...float32) []byte {
	b := make([]byte, 0, 4*len(elements))
	for _, x := range elements {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// Bytes encodes the file.
func (f *File) Bytes() []byte {
	var r Raw
	r.Bytes([]byte("GGUF")).U32(f.version).U64(uint64(len(f.tensors))).U64(uint64(len(f.keys)))
	for _, p := range f.keys {
		r.String(p.key).Value(p.value)
	}
	offset := 0
	for _, t := range f.tensors {
		r.String(t.name).U32(uint32(len(t.dims)))
		for _, d := range t.dims {
			r.U64(d)
		}
		r.U32(uint32(t.typ)).U64(uint64(offset))
		offset = f.aligned(offset + len(t.data))
	}
	for _, t := range f.tensors {
		r.Bytes(make([]byte, f.aligned(r.Len())-r.Len())).Bytes(t.data)
	}
	return r.Buffer.Bytes()
}

func (f *File) aligned(n int) int { return (n + f.alignment - 1) / f.alignment * f.alignment }

// Raw writes single fields, in whatever order.
type Raw struct{ bytes.Buffer }

// Bytes appends b.
func (r *Raw) Bytes(b []byte) *Raw {
	r.Write(b)
	return r
}

// U32 appends a number of four bytes.
func (r *Raw) U32(v uint32) *Raw { return r.Bytes(binary.LittleEndian.AppendUint32(nil, v)) }

// U64 appends a number of eight bytes.
func (r *Raw) U64(v uint64) *Raw { return r.Bytes(binary.LittleEndian.AppendUint64(nil, v)) }

// String appends s behind its length.
func (r *Raw) String(s string) *Raw { return r.U64(uint64(len(s))).Bytes([]byte(s)) }

// Value appends a value behind its type.
func (r *Raw) Value(value any) *Raw {
	if s, ok := value.(string); ok {
		return r.U32(uint32(gguf.KindString)).String(s)
	}
	if strs, ok := value.([]string); ok {
		r.U32(uint32(gguf.KindArray)).U32(uint32(gguf.KindString)).U64(uint64(len(strs)))
		for _, s := range strs {
			r.String(s)
		}
		return r
	}
	kind, n := kindOf(value)
	if n >= 0 {
		r.U32(uint32(gguf.KindArray)).U32(uint32(kind)).U64(uint64(n))
	} else {
		r.U32(uint32(kind))
	}
	if err := binary.Write(&r.Buffer, binary.LittleEndian, value); err != nil {
		panic(err) // kindOf has refused what could not be written
	}
	return r
}

// kindOf returns the kind of a number or bool and -1, or that of a slice's elements and their number.
func kindOf(value any) (gguf.Kind, int) {
	switch v := value.(type) {
	case uint8:
		return gguf.KindUint8, -1
	case int8:
		return gguf.KindInt8, -1
	case uint16:
		return gguf.KindUint16, -1
	case int16:
		return gguf.KindInt16, -1
	case uint32:
		return gguf.KindUint32, -1
	case int32:
		return gguf.KindInt32, -1
	case float32:
		return gguf.KindFloat32, -1
	case bool:
		return gguf.KindBool, -1
	case uint64:
		return gguf.KindUint64, -1
	case int64:
		return gguf.KindInt64, -1
	case float64:
		return gguf.KindFloat64, -1
	case []uint8:
		return gguf.KindUint8, len(v)
	case []int8:
		return gguf.KindInt8, len(v)
	case []int32:
		return gguf.KindInt32, len(v)
	case []uint32:
		return gguf.KindUint32, len(v)
	case []int64:
		return gguf.KindInt64, len(v)
	case []uint64:
		return gguf.KindUint64, len(v)
	case []float32:
		return gguf.KindFloat32, len(v)
	case []float64:
		return gguf.KindFloat64, len(v)
	case []bool:
		return gguf.KindBool, len(v)
	}
	panic(fmt.Sprintf("gguftest: a value of type %T cannot be written", value))
}

package gguf

import "fmt"

// Type is how the elements of a tensor are stored, numbered as in the file.
type Type uint32

// Types of tensors that can be dequantised. Files with the other types of ggml open as well.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q5_0 Type = 6
	Q5_1 Type = 7
	Q8_0 Type = 8
	Q4_K Type = 12
	Q5_K Type = 13
	Q6_K Type = 14
	BF16 Type = 30
)

// layout is how a type stores a block of elements.
type layout struct {
	name            string
	elements, bytes int64 // of a block
	// dequantize writes len(dst) elements, whole blocks of src. It is nil for types that only their sizes are known of.
	dequantize func(dst []float32, src []byte)
}

// layouts is a table, never written.
var layouts = map[Type]layout{
	F32:  {"F32", 1, 4, dequantizeF32},
	F16:  {"F16", 1, 2, dequantizeF16},
	Q4_0: {"Q4_0", 32, 18, dequantizeQ4_0},
	Q4_1: {"Q4_1", 32, 20, dequantizeQ4_1},
	Q5_0: {"Q5_0", 32, 22, dequantizeQ5_0},
	Q5_1: {"Q5_1", 32, 24, dequantizeQ5_1},
	Q8_0: {"Q8_0", 32, 34, dequantizeQ8_0},
	9:    {"Q8_1", 32, 36, nil},
	10:   {"Q2_K", 256, 84, nil},
	11:   {"Q3_K", 256, 110, nil},
	Q4_K: {"Q4_K", 256, 144, dequantizeQ4_K},
	Q5_K: {"Q5_K", 256, 176, dequantizeQ5_K},
	Q6_K: {"Q6_K", 256, 210, dequantizeQ6_K},
	15:   {"Q8_K", 256, 292, nil},
	16:   {"IQ2_XXS", 256, 66, nil},
	17:   {"IQ2_XS", 256, 74, nil},
	18:   {"IQ3_XXS", 256, 98, nil},
	19:   {"IQ1_S", 256, 50, nil},
	20:   {"IQ4_NL", 32, 18, nil},
	21:   {"IQ3_S", 256, 110, nil},
	22:   {"IQ2_S", 256, 82, nil},
	23:   {"IQ4_XS", 256, 136, nil},
	24:   {"I8", 1, 1, nil},
	25:   {"I16", 1, 2, nil},
	26:   {"I32", 1, 4, nil},
	27:   {"I64", 1, 8, nil},
	28:   {"F64", 1, 8, nil},
	29:   {"IQ1_M", 256, 56, nil},
	BF16: {"BF16", 1, 2, dequantizeBF16},
	34:   {"TQ1_0", 256, 54, nil},
	35:   {"TQ2_0", 256, 66, nil},
	39:   {"MXFP4", 32, 17, nil},
}

func (t Type) String() string {
	if l, ok := layouts[t]; ok {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Block is the number of elements, and of bytes, of the smallest unit stored; both are 0 for unknown types.
func (t Type) Block() (elements, bytes int) {
	l := layouts[t]
	return int(l.elements), int(l.bytes)
}

// Dequantizable reports whether rows of the type can be read as float32.
func (t Type) Dequantizable() bool { return layouts[t].dequantize != nil }

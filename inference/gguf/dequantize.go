package gguf

import (
	"encoding/binary"
	"math"
)

// The arithmetic below is that of ggml's reference, operation by operation, so that the floats are the same bits.
// Products are converted explicitly: it keeps the compiler from fusing them with the addition on machines that could.

func dequantizeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func dequantizeF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = half(src[2*i:])
	}
}

func dequantizeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

// Blocks of 32: element i is in the low half of byte i, element i+16 in the high half.

func dequantizeQ4_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		d, q := half(src), src[2:18]
		for i, b := range q {
			dst[i] = d * float32(int(b&15)-8)
			dst[i+16] = d * float32(int(b>>4)-8)
		}
	}
}

func dequantizeQ4_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[20:] {
		d, m, q := half(src), half(src[2:]), src[4:20]
		for i, b := range q {
			dst[i] = float32(d*float32(b&15)) + m
			dst[i+16] = float32(d*float32(b>>4)) + m
		}
	}
}

// Q5 keeps the fifth bits of a block together: bit i of a number is that of element i.

func dequantizeQ5_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[22:] {
		d, high, q := half(src), binary.LittleEndian.Uint32(src[2:]), src[6:22]
		for i, b := range q {
			dst[i] = d * float32(int(uint32(b&15)|high>>i&1<<4)-16)
			dst[i+16] = d * float32(int(uint32(b>>4)|high>>(i+16)&1<<4)-16)
		}
	}
}

func dequantizeQ5_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[24:] {
		d, m, high, q := half(src), half(src[2:]), binary.LittleEndian.Uint32(src[4:]), src[8:24]
		for i, b := range q {
			dst[i] = float32(d*float32(uint32(b&15)|high>>i&1<<4)) + m
			dst[i+16] = float32(d*float32(uint32(b>>4)|high>>(i+16)&1<<4)) + m
		}
	}
}

func dequantizeQ8_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[34:] {
		d, q := half(src), src[2:34]
		for i, b := range q {
			dst[i] = d * float32(int8(b))
		}
	}
}

// K types: a block of 256 is eight parts of 32 with a scale and a minimum of six bits each, packed in twelve bytes, and
// one factor for all scales and one for all minima.

func dequantizeQ4_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[144:] {
		d, m, scales, q := half(src), half(src[2:]), src[4:16], src[16:144]
		for part := range 8 {
			scale, least := scaleAndMin(scales, part)
			ds, ms := d*float32(scale), m*float32(least)
			shift := part % 2 * 4
			for i, b := range q[part/2*32 : part/2*32+32] {
				dst[part*32+i] = float32(ds*float32(b>>shift&15)) - ms
			}
		}
	}
}

func dequantizeQ5_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[176:] {
		d, m, scales, high, q := half(src), half(src[2:]), src[4:16], src[16:48], src[48:176]
		for part := range 8 {
			scale, least := scaleAndMin(scales, part)
			ds, ms := d*float32(scale), m*float32(least)
			shift := part % 2 * 4
			for i, b := range q[part/2*32 : part/2*32+32] {
				dst[part*32+i] = float32(ds*float32(b>>shift&15|high[i]>>part&1<<4)) - ms
			}
		}
	}
}

// scaleAndMin unpacks part's scale and minimum: those of the first four parts are the low six bits of the first and
// second four bytes; the others' low four bits are in the last four bytes and their high two in the first eight.
func scaleAndMin(packed []byte, part int) (scale, least byte) {
	if part < 4 {
		return packed[part] & 63, packed[part+4] & 63
	}
	return packed[part+4]&15 | packed[part-4]>>6<<4, packed[part+4]>>4 | packed[part]>>6<<4
}

// Q6_K: two halves of 128 elements, each with 64 bytes of low four bits, 32 of high two, and 8 scales of 16 elements.
func dequantizeQ6_K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[210:] {
		d := half(src[208:])
		for h := range 2 {
			low, high, scales, out := src[64*h:], src[128+32*h:], src[192+8*h:], dst[128*h:]
			for i := range 128 {
				row := i / 32 // of four, each with its own two bits of high
				q := low[i%64]>>(row/2*4)&15 | high[i%32]>>(2*row)&3<<4
				out[i] = float32(d*float32(int8(scales[i/16]))) * float32(int(q)-32)
			}
		}
	}
}

// half reads a float of 16 bits.
func half(b []byte) float32 {
	h := uint32(binary.LittleEndian.Uint16(b))
	sign, exponent, fraction := h>>15<<31, h>>10&31, h&1023
	switch exponent {
	case 0: // zero and subnormal: fraction · 2⁻²⁴, exact in 32 bits
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)*(1.0/(1<<24))))
	case 31: // infinity and NaN
		return math.Float32frombits(sign | 255<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}

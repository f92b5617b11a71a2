package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
)

// Limits on what stands in front of the tensor data. The largest vocabularies need some 20 MB.
const (
	maxHeaderBytes = 128 << 20
	maxKeys        = 1 << 16
	maxTensors     = 1 << 16
	maxKeyBytes    = 1 << 16
	maxNameBytes   = 256
	maxStringBytes = 16 << 20
	maxDimensions  = 4
	maxAlignment   = 1 << 20
	maxElements    = min(1<<44, math.MaxInt) // of a tensor: keeps all arithmetic on sizes inside 63 bits

	defaultAlignment = 32
	alignmentKey     = "general.alignment"
)

// Smallest encodings, by which counts are held against the bytes that are left.
const (
	minKeyBytes    = 8 + 4 + 1         // length, type, value
	minTensorBytes = 8 + 4 + 8 + 4 + 8 // length, number of dimensions, one dimension, type, offset
)

// parser reads the header in order. After the first error every read returns zero values, so that callers check once
// for each item; counts and lengths are checked before they are used all the same.
type parser struct {
	f   *File
	r   *bufio.Reader
	off int64 // of the next byte
	end int64 // of what may be read
	err error
	buf []byte
}

func (f *File) parse() error {
	p := &parser{f: f, end: min(f.size, maxHeaderBytes)}
	p.r = bufio.NewReaderSize(io.NewSectionReader(f.r, 0, p.end), 1<<16)
	tensors, keys := p.preamble()
	for i := uint64(0); i < keys && p.err == nil; i++ {
		p.keyValue()
	}
	p.alignment()
	for i := uint64(0); i < tensors && p.err == nil; i++ {
		p.tensor()
	}
	if p.err != nil {
		return p.err
	}
	return p.place()
}

// preamble reads up to the counts of tensors and keys.
func (p *parser) preamble() (tensors, keys uint64) {
	if magic := p.take(4); p.err == nil && string(magic) != "GGUF" {
		p.failAt(0, ErrFormat, "it does not begin with GGUF")
	}
	version := p.u32()
	switch {
	case p.err != nil:
	case version == 2 || version == 3:
	case version&0xffff == 0 && version != 0:
		p.failAt(4, ErrUnsupported, "it is big-endian")
	default:
		p.failAt(4, ErrUnsupported, "its version is %d; 2 and 3 are known", version)
	}
	p.f.version = version
	tensors = p.count("tensors", maxTensors, minTensorBytes)
	keys = p.count("keys", maxKeys, minKeyBytes)
	return tensors, keys
}

func (p *parser) keyValue() {
	at := p.off
	key := p.str(maxKeyBytes)
	kind := Kind(p.u32())
	v := p.value(kind)
	if p.err != nil {
		return
	}
	if key == "" {
		p.failAt(at, ErrFormat, "a key is empty")
		return
	}
	if _, twice := p.f.values[key]; twice {
		p.failAt(at, ErrFormat, "the key %q is there twice", key)
		return
	}
	v.at = at
	p.f.keys = append(p.f.keys, key)
	p.f.values[key] = v
}

// value reads a value of any kind.
func (p *parser) value(kind Kind) value {
	switch {
	case kind == KindString:
		return value{kind: kind, str: p.str(maxStringBytes)}
	case kind == KindArray:
		return p.array()
	case kind.size() > 0:
		b := p.take(kind.size())
		v := value{kind: kind, bits: bits(b)}
		if kind == KindBool && v.bits > 1 {
			p.failAt(p.off-1, ErrFormat, "a bool is %d", v.bits)
		}
		return v
	default:
		p.failAt(p.off-4, ErrFormat, "a value has the unknown type %d", uint32(kind))
		return value{}
	}
}

// array reads an array: numbers stay encoded, strings share one backing string.
func (p *parser) array() value {
	element := Kind(p.u32())
	if element == KindArray {
		p.failAt(p.off-4, ErrUnsupported, "an array holds arrays")
		return value{}
	}
	least := element.size()
	if element == KindString {
		least = 8
	}
	if least == 0 {
		p.failAt(p.off-4, ErrFormat, "an array has elements of the unknown type %d", uint32(element))
		return value{}
	}
	n := p.count("array elements", math.MaxInt64, int64(least))
	v := value{kind: KindArray, element: element}
	switch {
	case p.err != nil:
	case element == KindString:
		v.strs = p.strs(n)
	default:
		v.raw = slices.Clone(p.take(int(n) * least))
		if element == KindBool {
			if i := slices.IndexFunc(v.raw, func(b byte) bool { return b > 1 }); i >= 0 {
				p.failAt(p.off-int64(len(v.raw)-i), ErrFormat, "a bool is %d", v.raw[i])
			}
		}
	}
	return v
}

// strs reads n strings. Their bytes gather in one buffer, so that memory is what they take plus a header each.
func (p *parser) strs(n uint64) []string {
	var all []byte
	ends := make([]uint32, 0, min(n, 1<<16))
	for i := uint64(0); i < n && p.err == nil; i++ {
		all = append(all, p.bytes(maxStringBytes)...)
		ends = append(ends, uint32(len(all)))
	}
	if p.err != nil {
		return nil
	}
	joined, from := string(all), uint32(0)
	strs := make([]string, len(ends))
	for i, end := range ends {
		strs[i] = joined[from:end]
		from = end
	}
	return strs
}

func (p *parser) alignment() {
	p.f.alignment = defaultAlignment
	v, ok := p.f.values[alignmentKey]
	if !ok || p.err != nil {
		return
	}
	if v.kind != KindUint32 {
		p.failAt(v.at, ErrFormat, "%s is %s, not uint32", alignmentKey, v.kind)
		return
	}
	if v.bits == 0 || v.bits&(v.bits-1) != 0 || v.bits > maxAlignment {
		p.failAt(v.at, ErrFormat, "the alignment %d is not a power of two up to %d", v.bits, maxAlignment)
		return
	}
	p.f.alignment = int64(v.bits)
}

// tensor reads what describes one tensor. Its offset counts from the tensor data until place.
func (p *parser) tensor() {
	at := p.off
	t := &Tensor{f: p.f, name: p.str(maxNameBytes)}
	dimensions := p.u32()
	if p.err == nil && (dimensions < 1 || dimensions > maxDimensions) {
		p.failAt(p.off-4, ErrFormat, "tensor %q has %d dimensions; 1 to %d are allowed", t.name, dimensions, maxDimensions)
	}
	elements := uint64(1)
	for range dimensions {
		d := p.u64()
		if p.err != nil {
			return
		}
		if d == 0 || d > maxElements/elements {
			p.failAt(p.off-8, ErrFormat, "tensor %q has a dimension of %d, which makes it empty or too large", t.name, d)
			return
		}
		elements *= d
		t.dims = append(t.dims, int64(d))
	}
	t.typ = Type(p.u32())
	offset := p.u64()
	if p.err != nil {
		return
	}
	layout, known := layouts[t.typ]
	switch {
	case t.name == "":
		p.failAt(at, ErrFormat, "a tensor has no name")
	case p.f.byName[t.name] != nil:
		p.failAt(at, ErrFormat, "the tensor %q is there twice", t.name)
	case !known:
		p.failAt(p.off-12, ErrUnsupported, "tensor %q has the unknown type %d", t.name, uint32(t.typ))
	case t.dims[0]%layout.elements != 0:
		p.failAt(at, ErrFormat, "tensor %q has rows of %d elements, not a multiple of %s's block of %d", t.name, t.dims[0], t.typ, layout.elements)
	case offset%uint64(p.f.alignment) != 0:
		p.failAt(p.off-8, ErrFormat, "tensor %q begins at %d, not a multiple of the alignment %d", t.name, offset, p.f.alignment)
	case offset > uint64(p.f.size):
		p.failAt(p.off-8, ErrFormat, "tensor %q begins at %d of the data, behind the end of the file", t.name, offset)
	default:
		t.offset, t.at = int64(offset), at
		t.size = int64(elements) / layout.elements * layout.bytes
		p.f.tensors = append(p.f.tensors, t)
		p.f.byName[t.name] = t
	}
}

// place finds where the data begins and checks that every tensor lies in the file by itself.
func (p *parser) place() error {
	p.f.data = (p.off + p.f.alignment - 1) / p.f.alignment * p.f.alignment
	room := p.f.size - p.f.data
	sorted := slices.Clone(p.f.tensors)
	slices.SortStableFunc(sorted, func(a, b *Tensor) int { return int(max(-1, min(1, a.offset-b.offset))) })
	for i, t := range sorted {
		if t.size > room-t.offset {
			p.failAt(t.at, ErrFormat, "tensor %q takes %d bytes from %d on and the file ends at %d: it is truncated or damaged", t.name, t.size, p.f.data+t.offset, p.f.size)
			return p.err
		}
		if i > 0 && t.offset < sorted[i-1].offset+sorted[i-1].size {
			p.failAt(t.at, ErrFormat, "the tensors %q and %q overlap", sorted[i-1].name, t.name)
			return p.err
		}
	}
	for _, t := range sorted {
		t.offset += p.f.data
	}
	return nil
}

// count reads a number of things that take at least least bytes each, and refuses more than can be left.
func (p *parser) count(what string, most uint64, least int64) uint64 {
	n := p.u64()
	if p.err != nil {
		return 0
	}
	if left := uint64((p.end - p.off) / least); n > min(most, left) {
		p.failAt(p.off-8, ErrFormat, "it announces %d %s; at most %d are possible there", n, what, min(most, left))
		return 0
	}
	return n
}

func (p *parser) str(most uint64) string { return string(p.bytes(most)) }

// bytes reads a length and as many bytes, which are valid until the next read.
func (p *parser) bytes(most uint64) []byte {
	n := p.u64()
	if p.err == nil && n > most {
		p.failAt(p.off-8, ErrFormat, "a string of %d bytes is longer than the %d allowed there", n, most)
	}
	if p.err != nil {
		return nil
	}
	return p.take(int(n))
}

func (p *parser) u32() uint32 {
	if b := p.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (p *parser) u64() uint64 {
	if b := p.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// take reads n bytes, which are valid until the next read, or returns nil.
func (p *parser) take(n int) []byte {
	if p.err != nil {
		return nil
	}
	if int64(n) > p.end-p.off {
		if p.end < p.f.size {
			p.failAt(p.off, ErrFormat, "what stands in front of the tensors exceeds %d bytes", int64(maxHeaderBytes))
		} else {
			p.failAt(p.off, ErrFormat, "%d bytes are expected and the file ends at %d: it is truncated or damaged", n, p.f.size)
		}
		return nil
	}
	if n > cap(p.buf) {
		p.buf = make([]byte, max(n, 64))
	}
	b := p.buf[:n]
	if _, err := io.ReadFull(p.r, b); err != nil {
		p.err = fmt.Errorf("gguf: %s: read %d bytes at offset %d: %w", p.f.name, n, p.off, err)
		return nil
	}
	p.off += int64(n)
	return b
}

func (p *parser) failAt(off int64, sentinel error, format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("gguf: %s: offset %d: %s: %w", p.f.name, off, fmt.Sprintf(format, args...), sentinel)
	}
}

// bits returns up to eight little-endian bytes as a number.
func bits(b []byte) uint64 {
	var v uint64
	for i, x := range b {
		v |= uint64(x) << (8 * i)
	}
	return v
}

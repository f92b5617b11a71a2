package gguf

import (
	"errors"
	"fmt"
	"io"
)

// Tensor is one tensor of a file. Its methods are safe for concurrent use.
type Tensor struct {
	f      *File
	name   string
	dims   []int64
	typ    Type
	offset int64
	size   int64
	at     int64 // where the file describes it
}

// Name is unique in the file.
func (t *Tensor) Name() string { return t.name }

// Type is how the elements are stored.
func (t *Tensor) Type() Type { return t.typ }

// Dims returns one to four dimensions, that of a row first. The slice is shared.
func (t *Tensor) Dims() []int64 { return t.dims }

// Columns is the number of elements in a row.
func (t *Tensor) Columns() int { return int(t.dims[0]) }

// Rows is the number of rows, over all dimensions but the first.
func (t *Tensor) Rows() int {
	n := 1
	for _, d := range t.dims[1:] {
		n *= int(d)
	}
	return n
}

// Offset is where the data begins in the file, a multiple of the file's alignment.
func (t *Tensor) Offset() int64 { return t.offset }

// Size is the number of bytes of the data.
func (t *Tensor) Size() int64 { return t.size }

// Data reads the stored bytes.
func (t *Tensor) Data() *io.SectionReader { return io.NewSectionReader(t.f.r, t.offset, t.size) }

// Row writes the elements of row i to dst, whose length is Columns.
func (t *Tensor) Row(i int, dst []float32) error {
	if len(dst) != t.Columns() {
		return t.failed("read row %d: the destination has %d elements and a row %d", i, len(dst), t.Columns())
	}
	return t.ReadRows(i, dst)
}

// ReadRows writes consecutive rows from row i on to dst, whose length is a multiple of Columns. It fails with
// ErrUnsupported for types that Type.Dequantizable denies.
func (t *Tensor) ReadRows(i int, dst []float32) error {
	layout := layouts[t.typ]
	if layout.dequantize == nil {
		return t.failed("read rows: type %s: %w", t.typ, ErrUnsupported)
	}
	columns := t.Columns()
	n := len(dst) / columns
	if len(dst)%columns != 0 || i < 0 || n > t.Rows() || i > t.Rows()-n {
		return t.failed("read rows: %d elements from row %d on are not whole rows of %d elements by %d", len(dst), i, columns, t.Rows())
	}
	rowBytes := t.size / int64(t.Rows())
	buf := t.f.buffer(int(rowBytes) * n)
	defer t.f.scratch.Put(buf)
	at := t.offset + int64(i)*rowBytes
	if got, err := t.f.r.ReadAt(*buf, at); err != nil && got < len(*buf) {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the file has become shorter since it was opened
		}
		return t.failed("read %d bytes at offset %d: %w", len(*buf), at, err)
	}
	layout.dequantize(dst, *buf)
	return nil
}

func (t *Tensor) failed(format string, args ...any) error {
	return fmt.Errorf("gguf: %s: tensor %q: %w", t.f.name, t.name, fmt.Errorf(format, args...))
}

// buffer returns n bytes from the pool.
func (f *File) buffer(n int) *[]byte {
	buf, _ := f.scratch.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	if cap(*buf) < n {
		*buf = make([]byte, n)
	}
	*buf = (*buf)[:n]
	return buf
}

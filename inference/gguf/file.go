package gguf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Sentinel errors.
var (
	ErrFormat      = errors.New("not a valid GGUF file")
	ErrUnsupported = errors.New("not supported")
	ErrNotFound    = errors.New("not found")
	ErrType        = errors.New("of another type")
)

// File is an open GGUF file. Its methods are safe for concurrent use.
//
// Invariants, established by New:
//  1. Keys of metadata and names of tensors are unique.
//  2. Every tensor lies inside the file, begins at a multiple of the alignment and overlaps no other.
//  3. The first dimension of a tensor is a whole number of blocks of its type.
type File struct {
	name      string
	r         io.ReaderAt
	size      int64
	closer    io.Closer
	version   uint32
	alignment int64
	data      int64 // offset of the tensor data

	keys    []string // in file order
	values  map[string]value
	tensors []*Tensor // in file order
	byName  map[string]*Tensor
	scratch sync.Pool // of *[]byte: encoded rows
}

// Open opens the file at path.
func Open(path string) (*File, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	f, err := openFile(r, path)
	if err != nil {
		r.Close()
		return nil, err
	}
	f.closer = r
	return f, nil
}

func openFile(r *os.File, path string) (*File, error) {
	st, err := r.Stat()
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("gguf: %s is not a regular file: %w", path, ErrFormat)
	}
	return New(r, st.Size(), path)
}

// New reads a file of size bytes from r. name is used in errors only. The File keeps r; closing it does not close r.
func New(r io.ReaderAt, size int64, name string) (*File, error) {
	f := &File{name: name, r: r, size: size, values: map[string]value{}, byName: map[string]*Tensor{}}
	if err := f.parse(); err != nil {
		return nil, err
	}
	return f, nil
}

// Close closes what Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	if err := f.closer.Close(); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	return nil
}

// Name is the path or name given at opening.
func (f *File) Name() string { return f.name }

// Size is the length of the file in bytes.
func (f *File) Size() int64 { return f.size }

// Version is that of the format: 2 or 3.
func (f *File) Version() int { return int(f.version) }

// Tensors returns all tensors in the order of the file. The slice is shared.
func (f *File) Tensors() []*Tensor { return f.tensors }

// Tensor returns the tensor of that name, or an error that wraps ErrNotFound.
func (f *File) Tensor(name string) (*Tensor, error) {
	t, ok := f.byName[name]
	if !ok {
		return nil, fmt.Errorf("gguf: %s: tensor %q: %w", f.name, name, ErrNotFound)
	}
	return t, nil
}

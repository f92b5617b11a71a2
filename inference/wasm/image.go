package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"
)

// An image is the packed weights as a file in the cache folder:
//
//	header, padded to a multiple of imageAlign | payload
//
// The header names the format, the source file's digest and the shape, and carries a CRC-32C of every block of the
// payload and of itself. It guards against damage and staleness, not against an attacker: whoever can write the cache
// folder can replace compiled code as well, which is why the folder belongs to its owner alone.

const (
	imageMagic   = "hfw-r8\r\n"
	imageFormat  = 1
	imageAlign   = 4 << 10
	imageBlock   = 1 << 20
	tempPattern  = ".weights-*.tmp"
	abandonedAge = time.Hour // no image takes so long to write
)

// errImage says why an image cannot be used. It never leaves the package: the image is made again.
var errImage = errors.New("unusable image")

// imageIdentity is what an image is of. Equal identities have equal payloads.
type imageIdentity struct {
	Magic  [8]byte
	Format uint32
	Source [sha256.Size]byte
	Shape  [8]uint32
	Size   uint64 // of the payload
	Blocks uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func identify(source [sha256.Size]byte, s shape, w *weightLayout) imageIdentity {
	id := imageIdentity{
		Format: imageFormat, Source: source, Size: w.size,
		Shape: [8]uint32{uint32(s.Dim), uint32(s.Hidden), uint32(s.Layers), uint32(s.Heads), uint32(s.KVHeads),
			uint32(s.HeadSize), uint32(s.Vocabulary), 0},
		Blocks: uint32((w.size + imageBlock - 1) / imageBlock),
	}
	copy(id.Magic[:], imageMagic)
	if s.Tied {
		id.Shape[7] = 1
	}
	return id
}

// path of the image in a cache folder: one a source, so that models share a folder.
func (id imageIdentity) path(dir string) string {
	return filepath.Join(dir, fmt.Sprintf("weights-%s.image", hex.EncodeToString(id.Source[:8])))
}

func (id imageIdentity) headerBytes() int {
	return roundUp(binary.Size(id)+int(id.Blocks)*4+4, imageAlign)
}

// header returns identity, block checksums, zeros, and a checksum of all that.
func (id imageIdentity) header(sums []uint32) []byte {
	h := mustAppend(make([]byte, 0, id.headerBytes()), id)
	h = mustAppend(h, sums)
	h = append(h, make([]byte, id.headerBytes()-len(h)-4)...)
	return binary.LittleEndian.AppendUint32(h, crc32.Checksum(h, castagnoli))
}

// eachBlock calls do with the number of each block of the payload and its bytes in weights.
func (id imageIdentity) eachBlock(ctx context.Context, weights []byte, do func(i int, block []byte) error) error {
	for i := range int(id.Blocks) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := do(i, weights[i*imageBlock:min((i+1)*imageBlock, len(weights))]); err != nil {
			return err
		}
	}
	return nil
}

// readImage fills weights from the image at path. Errors that wrap errImage or fs.ErrNotExist mean that the image is to
// be made again; weights may then be partly written.
func readImage(ctx context.Context, path string, id imageIdentity, weights []byte, progress func(done, total int64)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	header := make([]byte, id.headerBytes())
	if st, err := f.Stat(); err != nil {
		return err
	} else if want := int64(len(header)) + int64(id.Size); st.Size() != want {
		return fmt.Errorf("%w: it has %d bytes instead of %d", errImage, st.Size(), want)
	}
	if _, err := f.ReadAt(header, 0); err != nil {
		return fmt.Errorf("%w: reading its header: %w", errImage, err)
	}
	end := len(header) - 4
	if crc32.Checksum(header[:end], castagnoli) != binary.LittleEndian.Uint32(header[end:]) {
		return fmt.Errorf("%w: its header is damaged", errImage)
	}
	want := mustAppend(nil, id)
	if !bytes.Equal(header[:len(want)], want) {
		return fmt.Errorf("%w: it is of another format or source", errImage)
	}
	sums := header[len(want):]
	return id.eachBlock(ctx, weights, func(i int, block []byte) error {
		if _, err := f.ReadAt(block, int64(len(header))+int64(i)*imageBlock); err != nil {
			return fmt.Errorf("%w: reading block %d: %w", errImage, i, err)
		}
		if crc32.Checksum(block, castagnoli) != binary.LittleEndian.Uint32(sums[i*4:]) {
			return fmt.Errorf("%w: block %d is damaged", errImage, i)
		}
		if progress != nil {
			progress(int64(i*imageBlock+len(block)), int64(len(weights)))
		}
		return nil
	})
}

// writeImage writes the image beside path and moves it there when it is durable: readers see all of it or none. Writers
// that race each other write the same bytes.
func writeImage(ctx context.Context, path string, id imageIdentity, weights []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	removeAbandoned(dir)
	f, err := os.CreateTemp(dir, tempPattern)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	sums := make([]uint32, id.Blocks)
	if err := id.eachBlock(ctx, weights, func(i int, block []byte) error {
		sums[i] = crc32.Checksum(block, castagnoli)
		return nil
	}); err != nil {
		return err
	}
	for _, part := range [][]byte{id.header(sums), weights} {
		if _, err := io.Copy(f, bytes.NewReader(part)); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// removeAbandoned deletes what a killed process left half written. Failing to is harmless.
func removeAbandoned(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, tempPattern))
	for _, name := range names {
		if st, err := os.Stat(name); err == nil && time.Since(st.ModTime()) > abandonedAge {
			os.Remove(name)
		}
	}
}

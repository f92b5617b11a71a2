package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/holdfast-ai/holdfast/proto/statepb"
)

// Field numbers of statepb.LogRecord.
const (
	logRecordFirst  = 1
	logRecordFrames = 2
)

// logRecord walks the frames of a record's payload without copying it.
type logRecord struct {
	first uint64
	count uint64
	rest  []byte // the fields after first
}

// openLog checks the record at the iterator and returns it. It is valid until the iterator moves.
func openLog(it Iterator) (*logRecord, error) {
	key := it.Key()
	rec, err := it.Value()
	if err != nil {
		return nil, err
	}
	payload, err := open(key, rec)
	if err != nil {
		return nil, err
	}
	if len(keySuffix(key)) != 8 {
		return nil, corrupt(key, "its key has no offset")
	}
	num, typ, n := protowire.ConsumeTag(payload)
	if n < 0 || num != logRecordFirst || typ != protowire.VarintType {
		return nil, corrupt(key, "it does not begin with an offset")
	}
	first, m := protowire.ConsumeVarint(payload[n:])
	if m < 0 || first == 0 || first != binary.BigEndian.Uint64(keySuffix(key)) {
		return nil, corrupt(key, "it begins at offset %d", first)
	}
	r := &logRecord{first: first, rest: payload[n+m:]}
	for walk := r.rest; len(walk) > 0; r.count++ {
		if _, walk, err = frame(key, walk); err != nil {
			return nil, err
		}
	}
	if r.count == 0 {
		return nil, corrupt(key, "it holds no frame")
	}
	return r, nil
}

func frame(key, fields []byte) (data, rest []byte, err error) {
	num, typ, n := protowire.ConsumeTag(fields)
	if n < 0 || num != logRecordFrames || typ != protowire.BytesType {
		return nil, nil, corrupt(key, "a frame was expected")
	}
	data, m := protowire.ConsumeBytes(fields[n:])
	if m < 0 {
		return nil, nil, corrupt(key, "a frame is cut short")
	}
	return data, fields[n+m:], nil
}

// lastOffset returns the last offset of a log, 0 if it is empty.
func (s *Store) lastOffset(v View, r Ref) (uint64, error) {
	prefix := recordKey(r, recLog)
	it, err := v.Iter(prefix, next(prefix))
	if err != nil {
		return 0, err
	}
	var last uint64
	if it.Last() {
		var rec *logRecord
		if rec, err = openLog(it); err == nil {
			last = rec.first + rec.count - 1
		}
	} else {
		err = it.Err()
	}
	err = s.damaged(prefix, err)
	if cerr := it.Close(); err == nil {
		err = s.damaged(prefix, cerr)
	}
	return last, err
}

// ReadLog returns the frames with after < offset <= upTo, in order and without a gap, up to and including the frame
// with which they reach maxBytes; at least one if there is one. It may be called from any goroutine, whether the object
// is active or not. It shows only what is durable; a caller that must not run ahead of an activation's watermark clamps
// upTo itself. An offset that retention has removed is ErrGone, one that is missing otherwise ErrCorrupt.
func (s *Store) ReadLog(r Ref, after, upTo uint64, maxBytes int) ([]LogFrame, error) {
	if after >= upTo {
		return nil, nil
	}
	var out []LogFrame
	err := s.view(func(v View) (err error) {
		out, err = s.readLog(v, r, after, upTo, maxBytes)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read log of %s after offset %d: %w", r, after, err)
	}
	return out, nil
}

func (s *Store) readLog(v View, r Ref, after, upTo uint64, maxBytes int) (out []LogFrame, err error) {
	prefix := recordKey(r, recLog)
	it, err := v.Iter(prefix, next(prefix))
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = cerr
		}
		if err = s.damaged(prefix, err); err != nil {
			out = nil
		}
	}()
	w := window{want: after + 1, upTo: upTo, left: maxBytes}
	// The record that holds an offset is the last one that does not begin after it.
	ok := it.SeekLT(binary.BigEndian.AppendUint64(bytes.Clone(prefix), w.want+1))
	if !ok && it.Err() == nil {
		ok = it.First()
	}
	for first := true; ok; ok, first = it.Next(), false {
		rec, err := openLog(it)
		if err != nil {
			return nil, err
		}
		if first && rec.first+rec.count <= w.want {
			continue // ends before; what is wanted, if anything, comes next
		}
		if rec.first > w.upTo {
			break
		}
		if rec.first > w.want {
			return nil, s.gap(v, r, it.Key(), w.want, rec.first)
		}
		if rec.first+rec.count <= w.want {
			return nil, corrupt(it.Key(), "it repeats offsets before %d", w.want)
		}
		full, err := w.take(it.Key(), rec)
		if err != nil {
			return nil, err
		}
		if full {
			break
		}
	}
	if len(w.out) > 0 {
		return w.out, it.Err()
	}
	if err := it.Err(); err != nil {
		return nil, err
	}
	return nil, nil
}

// gap says why want is missing though a later record begins at first.
func (s *Store) gap(v View, r Ref, key []byte, want, first uint64) error {
	meta := new(statepb.Meta)
	err := s.getMessage(v, recordKey(r, recMeta), meta)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if want < meta.FirstOffset {
		return fmt.Errorf("offset %d was removed, the first one held is %d: %w", want, meta.FirstOffset, ErrGone)
	}
	return corrupt(key, "offsets %d to %d before it are missing", want, first-1)
}

// window collects frames of consecutive records.
type window struct {
	want, upTo uint64
	left       int // bytes
	out        []LogFrame
}

// take adds the wanted frames of rec, which holds want, and reports whether the window is full.
func (w *window) take(key []byte, rec *logRecord) (full bool, err error) {
	offset, rest := rec.first, rec.rest
	for ; len(rest) > 0; offset++ {
		if offset > w.upTo {
			return true, nil
		}
		var data []byte
		if data, rest, err = frame(key, rest); err != nil {
			return false, err
		}
		if offset < w.want {
			continue
		}
		w.out = append(w.out, LogFrame{Offset: offset, Data: bytes.Clone(data)})
		w.want++
		if w.left -= len(data); w.left <= 0 {
			return true, nil
		}
	}
	return w.want > w.upTo, nil
}

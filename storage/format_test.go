package storage

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/proto/statepb"
)

// TestFormat pins keys and records byte for byte. A change here makes every existing data folder unreadable: raise
// formatVersion and say how folders are converted.
func TestFormat(t *testing.T) {
	a := Address{Namespace: "default", Kind: "session", Name: "demo"}
	r := Ref{Hash: a.ID(), Incarnation: 1}
	frames := [][]byte{[]byte("a"), {}}
	log := offsetKey(r, recLog, 7)
	for _, test := range []struct {
		what string
		got  []byte
		want string
	}{
		{"node key", nodeKey, "6d00006e6f6465"},
		{"name key", nameKey(a), "6e000064656661756c740073657373696f6e0064656d6f"},
		{"meta key", recordKey(r, recMeta), "6f0000c9e14c78365dceb75e4755579ddba59c000000016d"},
		{"log key", log, "6f0000c9e14c78365dceb75e4755579ddba59c000000016c0000000000000007"},
		{"message id key", messageIDKey(r, "u", "m"), "6f0000c9e14c78365dceb75e4755579ddba59c00000001690001756d"},
		{"due key", dueKey(r, -1, "k"), "6400007fffffffffffffffc9e14c78365dceb75e4755579ddba59c000000016b"},
		{"live key", liveKey(r, 7), "6c0000c9e14c78365dceb75e4755579ddba59c000000010000000000000007"},
		{"log record", seal(log, appendLogRecord(nil, 7, frames)), "010000000000000000" + "0807120161" + "1200"},
	} {
		got := hex.EncodeToString(test.got)
		if test.what == "log record" {
			got = got[:10] + "00000000" + got[18:] // the checksum is below
		}
		if got != test.want {
			t.Errorf("%s is %s, want %s", test.what, got, test.want)
		}
	}
	if got := checksum([]byte{1, 0, 0, 0, 0}, log, []byte("payload")); got != 0x382e6562 {
		t.Errorf("checksum is %#x", got)
	}
}

func TestLogRecordIsProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := &statepb.LogRecord{
			First:  rapid.Uint64Min(1).Draw(t, "first"),
			Frames: rapid.SliceOfN(rapid.SliceOf(rapid.Byte()), 1, 10).Draw(t, "frames"),
		}
		var got statepb.LogRecord
		if err := proto.Unmarshal(appendLogRecord(nil, want.First, want.Frames), &got); err != nil || !proto.Equal(&got, want) {
			t.Fatalf("%v is read as %v (%v)", want, &got, err)
		}
	})
}

// TestDamageIsFound flips, cuts and moves records at random.
func TestDamageIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "key")
		payload := rapid.SliceOf(rapid.Byte()).Draw(t, "payload")
		rec := seal(key, payload)
		if got, err := open(key, rec); err != nil || !bytes.Equal(got, payload) {
			t.Fatalf("a sound record is %x, %v", got, err)
		}
		switch rapid.IntRange(0, 3).Draw(t, "damage") {
		case 0:
			rec[rapid.IntRange(0, len(rec)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		case 1:
			rec = rec[:rapid.IntRange(0, len(rec)-1).Draw(t, "length")]
		case 2:
			rec = append(rec, rapid.Byte().Draw(t, "more"))
		case 3:
			other := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "other key")
			if bytes.Equal(other, key) {
				return
			}
			key = other
		}
		if _, err := open(key, rec); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("damage is reported as %v", err)
		}
	})
}

func TestRecordsOfNewerReleases(t *testing.T) {
	key := []byte("k")
	for what, head := range map[string][]byte{
		"a newer version": {2, 0, 0, 0, 0},
		"encrypted":       {1, 0, 0, 0, 9},
	} {
		sum := checksum(head, key, nil)
		rec := append(bytes.Clone(head), byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
		if _, err := open(key, rec); !errors.Is(err, ErrNewerFormat) || errors.Is(err, ErrCorrupt) {
			t.Errorf("a record that is %s: %v, want ErrNewerFormat", what, err)
		}
	}
}

// TestKeyOrder: scans rely on it.
func TestKeyOrder(t *testing.T) {
	r := Ref{Hash: ObjectID{1}, Incarnation: 2}
	due := []int64{-1 << 62, -2, -1, 0, 1, 1 << 40}
	if !slices.IsSortedFunc(due, func(a, b int64) int { return bytes.Compare(dueKey(r, a, ""), dueKey(r, b, "")) }) {
		t.Error("due keys are not in the order of their times")
	}
	for _, ms := range due {
		if got := dueTime(dueKey(r, ms, "k")); got.UnixMilli() != ms || !got.Equal(time.UnixMilli(ms)) {
			t.Errorf("due time %d is read as %v", ms, got)
		}
	}
	offsets := []uint64{0, 1, 255, 256, 1 << 32, 1<<64 - 1}
	if !slices.IsSortedFunc(offsets, func(a, b uint64) int {
		return bytes.Compare(offsetKey(r, recLog, a), offsetKey(r, recLog, b))
	}) {
		t.Error("log keys are not in the order of their offsets")
	}
	rapid.Check(t, func(t *rapid.T) {
		prefix := append([]byte{spaceObject}, rapid.SliceOf(rapid.SampledFrom([]byte{0, 1, 0xfe, 0xff})).Draw(t, "prefix")...)
		tail := rapid.SliceOf(rapid.Byte()).Draw(t, "tail")
		end := next(prefix)
		if k := append(bytes.Clone(prefix), tail...); bytes.Compare(k, end) >= 0 {
			t.Fatalf("%x is not before %x", k, end)
		}
		if bytes.HasPrefix(end, prefix) {
			t.Fatalf("%x has the prefix %x", end, prefix)
		}
	})
	for _, key := range [][]byte{dueKey(r, 5, "k"), liveKey(r, 9), offsetKey(r, recLog, 1), recordKey(r, recMeta)} {
		if got, ok := refOf(key); !ok || got != r {
			t.Errorf("key %x belongs to %v, %v", key, got, ok)
		}
		if _, ok := refOf(key[:10]); ok {
			t.Errorf("the cut key %x belongs to somebody", key[:10])
		}
	}
	if _, ok := refOf(nodeKey); ok {
		t.Error("the node record belongs to an object")
	}
}

// fakeIterator stands on one record.
type fakeIterator struct {
	Iterator
	key, value []byte
}

func (f fakeIterator) Key() []byte            { return f.key }
func (f fakeIterator) Value() ([]byte, error) { return f.value, nil }

// FuzzLogRecord feeds payloads whose checksum is right to the reader of log records.
func FuzzLogRecord(f *testing.F) {
	f.Add(appendLogRecord(nil, 7, [][]byte{[]byte("a"), {}}), uint64(7))
	f.Add([]byte{8, 7}, uint64(7))
	f.Add([]byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, payload []byte, first uint64) {
		key := offsetKey(Ref{}, recLog, first)
		rec, err := openLog(fakeIterator{key: key, value: seal(key, payload)})
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error %v", err)
			}
			return
		}
		var want statepb.LogRecord
		if err := proto.Unmarshal(payload, &want); err != nil || want.First != first || uint64(len(want.Frames)) != rec.count {
			t.Fatalf("read %d frames from %d; protobuf has %d from %d (%v)", rec.count, rec.first, len(want.Frames), want.First, err)
		}
		w := window{want: first, upTo: first + rec.count - 1, left: 1 << 30}
		if _, err := w.take(key, rec); err != nil || len(w.out) != len(want.Frames) {
			t.Fatalf("took %d of %d frames (%v)", len(w.out), len(want.Frames), err)
		}
	})
}

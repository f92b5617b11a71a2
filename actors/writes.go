package actors

import (
	"maps"
	"time"

	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/storage"
)

// writes is a write-set: what one handler, or several in order, changed. A nil value in a map is a deletion.
type writes struct {
	first  uint64 // offset of frames[0]
	frames [][]byte
	meta   *statepb.Meta
	turns  map[uint64]*statepb.Turn
	ids    map[messageKey]*statepb.MessageID
	values map[string][]byte
	alarms map[string]*statepb.Alarm
	live   map[uint64]bool
	size   int // bytes, roughly
}

type messageKey struct{ user, id string }

func (w *writes) empty() bool {
	return len(w.frames) == 0 && w.meta == nil && len(w.turns) == 0 && len(w.ids) == 0 && len(w.values) == 0 &&
		len(w.alarms) == 0 && len(w.live) == 0
}

// merge adds what a later handler wrote.
func (w *writes) merge(o *writes) {
	if len(w.frames) == 0 {
		w.first = o.first
	}
	w.frames = append(w.frames, o.frames...)
	if o.meta != nil {
		w.meta = o.meta
	}
	w.turns = mergeMap(w.turns, o.turns)
	w.ids = mergeMap(w.ids, o.ids)
	w.values = mergeMap(w.values, o.values)
	w.alarms = mergeMap(w.alarms, o.alarms)
	w.live = mergeMap(w.live, o.live)
	w.size += o.size
}

func mergeMap[K comparable, V any](dst, src map[K]V) map[K]V {
	if dst == nil {
		return src
	}
	maps.Copy(dst, src)
	return dst
}

func set[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}

// fill moves w into a batch.
func (w *writes) fill(b *storage.Batch) {
	if w.meta != nil {
		b.PutMeta(w.meta)
	}
	if len(w.frames) > 0 {
		b.Append(w.first, w.frames)
	}
	for _, t := range w.turns {
		b.PutTurn(t)
	}
	for k, m := range w.ids {
		if m == nil {
			b.DeleteMessageID(k.user, k.id)
		} else {
			b.PutMessageID(k.user, k.id, m)
		}
	}
	for k, v := range w.values {
		if v == nil {
			b.Delete([]byte(k))
		} else {
			b.Put([]byte(k), v)
		}
	}
	for k, a := range w.alarms {
		if a == nil {
			b.ClearAlarm(k)
		} else {
			b.SetAlarm(a)
		}
	}
	for t, on := range w.live {
		if on {
			b.SetLive(t)
		} else {
			b.ClearLive(t)
		}
	}
}

// nextAlarm is the earliest alarm that w sets.
func (w *writes) nextAlarm() (due time.Time, ok bool) {
	for _, a := range w.alarms {
		if a == nil {
			continue
		}
		if t := time.UnixMilli(a.DueUnixMs); !ok || t.Before(due) {
			due, ok = t, true
		}
	}
	return due, ok
}

// group is the unit of durability: the write-sets of handlers that commit together and the outputs that wait for it.
type group struct {
	writes
	outputs []output
	began   time.Time
}

// output leaves through the gate: run when it may be seen, or fail if it never may. Either may be nil.
type output struct {
	run  func()
	fail func(error)
}

func (g *group) release() {
	for _, o := range g.outputs {
		if o.run != nil {
			o.run()
		}
	}
}

func (g *group) fail(err error) {
	for _, o := range g.outputs {
		if o.fail != nil {
			o.fail(err)
		}
	}
}

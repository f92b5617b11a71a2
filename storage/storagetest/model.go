package storagetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/storage"
)

// The model works on few objects and keys, so that operations meet. One key is a prefix of the other.
var (
	modelNames = []string{"a", "b", "c"}
	modelKeys  = []string{"", "x"}
)

// modelState is what one object holds, as simply as it can be said.
type modelState struct {
	exists bool
	state  string
	log    []string
	values map[string]string
	alarms map[string]int64
	turns  map[uint64]string
	ids    map[string]uint64
	live   map[uint64]bool
}

func (m modelState) clone() modelState {
	m.log = slices.Clone(m.log)
	m.values, m.alarms, m.turns = maps.Clone(m.values), maps.Clone(m.alarms), maps.Clone(m.turns)
	m.ids, m.live = maps.Clone(m.ids), maps.Clone(m.live)
	return m
}

func newModelState() modelState {
	return modelState{
		values: map[string]string{}, alarms: map[string]int64{}, turns: map[uint64]string{},
		ids: map[string]uint64{}, live: map[uint64]bool{},
	}
}

// String is compared; fmt prints maps in the order of their keys.
func (m modelState) String() string {
	return fmt.Sprintf("exists=%v state=%q log=%q values=%q alarms=%v turns=%v ids=%v live=%v",
		m.exists, m.state, m.log, m.values, m.alarms, m.turns, m.ids, m.live)
}

// modelObject is one object: what is durable, what the commits under way would make of it, and who may write it.
type modelObject struct {
	name    string
	durable modelState
	pending []modelState // after each commit under way, oldest first
	done    []pending
	unread  bool              // changed since it was last compared
	newest  *storage.Object   // nil: none since the last start
	stale   []*storage.Object // earlier activations
}

func (m *modelObject) latest() modelState {
	if n := len(m.pending); n > 0 {
		return m.pending[n-1]
	}
	return m.durable
}

// machine drives a store and a model with the same operations.
type machine struct {
	t       *testing.T
	open    Opener
	shop    *shop
	disk    *Disk
	held    bool
	boots   uint64
	seed    uint64
	objects map[string]*modelObject
}

func testModel(t *testing.T, open Opener) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &machine{t: t, open: open, disk: NewDisk(), objects: map[string]*modelObject{}}
		for _, n := range modelNames {
			m.objects[n] = &modelObject{name: n, durable: newModelState()}
		}
		m.start(rt)
		defer func() {
			m.disk.Release()
			m.shop.f.closed = true
			_ = m.shop.f.Close()
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"commit":   m.commit,
			"activate": m.activate,
			"stale":    m.commitStale,
			"hold":     m.hold,
			"release":  m.release,
			"restart":  m.restart,
			"crash":    m.crash,
			"invalid":  m.invalid,
			"":         m.check,
		})
	})
}

func (m *machine) start(rt *rapid.T) {
	f := &fixture{t: m.t, open: m.open, disk: m.disk}
	e, err := m.open(m.disk.FS())
	if err != nil {
		rt.Fatalf("open: %v", err)
	}
	f.Engine = e
	s, err := storage.Open(e, storage.Options{})
	if err != nil {
		rt.Fatalf("open store: %v", err)
	}
	m.shop = &shop{Store: s, f: f, t: m.t}
	if m.boots++; s.Node().Boot != m.boots {
		rt.Fatalf("this is start %d, the store says %d", m.boots, s.Node().Boot)
	}
}

func (m *machine) pick(rt *rapid.T) *modelObject {
	return m.objects[rapid.SampledFrom(modelNames).Draw(rt, "object")]
}

// object returns the newest activation, making one if need be.
func (m *machine) object(rt *rapid.T, mo *modelObject) *storage.Object {
	if mo.newest == nil {
		o, err := m.shop.Activate(address(mo.name))
		if err != nil {
			rt.Fatalf("activate: %v", err)
		}
		mo.newest = o
		if o.Exists() != mo.durable.exists || o.LastOffset() != uint64(len(mo.durable.log)) ||
			o.Exists() && string(o.Meta().State) != mo.durable.state {
			rt.Fatalf("activation of %s found exists=%v last=%d, the model has %v", mo.name, o.Exists(), o.LastOffset(), mo.durable)
		}
	}
	return mo.newest
}

func (m *machine) activate(rt *rapid.T) {
	mo := m.pick(rt)
	if len(mo.pending) > 0 {
		m.release(rt) // an activation waits for them
	}
	if mo.newest != nil {
		if rapid.Bool().Draw(rt, "release") {
			mo.newest.Release()
		}
		mo.stale = append(mo.stale, mo.newest)
		mo.newest = nil
	}
	m.object(rt, mo)
}

func (m *machine) commit(rt *rapid.T) {
	mo := m.pick(rt)
	o := m.object(rt, mo)
	after := mo.latest().clone()
	p := commit(o, func(b *storage.Batch) { fill(rt, b, &after) })
	mo.unread = true
	mo.pending = append(mo.pending, after)
	mo.done = append(mo.done, p)
	if !m.held {
		m.settle(rt, mo)
	}
}

// fill draws a batch and does the same to s.
func fill(rt *rapid.T, b *storage.Batch, s *modelState) {
	keys := rapid.SampledFrom(modelKeys)
	if !s.exists || rapid.Bool().Draw(rt, "meta") {
		s.exists, s.state = true, rapid.StringN(0, 4, 8).Draw(rt, "state")
		b.PutMeta(&statepb.Meta{State: []byte(s.state)})
	}
	for range rapid.IntRange(0, 4).Draw(rt, "changes") {
		switch rapid.IntRange(0, 7).Draw(rt, "change") {
		case 0:
			var frames [][]byte
			first := uint64(len(s.log)) + 1
			for range rapid.IntRange(0, 3).Draw(rt, "frames") {
				f := rapid.StringN(0, 6, 12).Draw(rt, "frame")
				frames = append(frames, []byte(f))
				s.log = append(s.log, f)
			}
			b.Append(first, frames)
		case 1:
			k, v := keys.Draw(rt, "key"), rapid.StringN(0, 4, 8).Draw(rt, "value")
			b.Put([]byte(k), []byte(v))
			s.values[k] = v
		case 2:
			k := keys.Draw(rt, "key")
			b.Delete([]byte(k))
			delete(s.values, k)
		case 3:
			k, due := keys.Draw(rt, "alarm"), rapid.Int64Range(-3, 3).Draw(rt, "due")
			b.SetAlarm(&statepb.Alarm{Key: k, DueUnixMs: due})
			s.alarms[k] = due
		case 4:
			k := keys.Draw(rt, "alarm")
			b.ClearAlarm(k)
			delete(s.alarms, k)
		case 5:
			id, user := rapid.Uint64Range(1, 4).Draw(rt, "turn"), keys.Draw(rt, "user")
			b.PutTurn(&statepb.Turn{Turn: id, User: user})
			s.turns[id] = user
		case 6:
			id, on := rapid.Uint64Range(1, 4).Draw(rt, "turn"), rapid.Bool().Draw(rt, "on")
			if on {
				b.SetLive(id)
				s.live[id] = true
			} else {
				b.ClearLive(id)
				delete(s.live, id)
			}
		case 7:
			user, id := keys.Draw(rt, "user"), keys.Draw(rt, "id")
			turn := rapid.Uint64Range(0, 4).Draw(rt, "turn")
			if turn == 0 {
				b.DeleteMessageID(user, id)
				delete(s.ids, user+"/"+id)
			} else {
				b.PutMessageID(user, id, &statepb.MessageID{Turn: turn})
				s.ids[user+"/"+id] = turn
			}
		}
	}
}

// settle waits for the commits of one object.
func (m *machine) settle(rt *rapid.T, mo *modelObject) {
	for i, p := range mo.done {
		if err := <-p; err != nil {
			rt.Fatalf("commit %d of %s: %v", i, mo.name, err)
		}
		mo.durable = mo.pending[i]
	}
	mo.pending, mo.done = nil, nil
}

func (m *machine) commitStale(rt *rapid.T) {
	mo := m.pick(rt)
	if len(mo.stale) == 0 || m.held { // a refused commit takes its turn behind those held
		return
	}
	o := rapid.SampledFrom(mo.stale).Draw(rt, "stale")
	p := commit(o, func(b *storage.Batch) {
		b.PutMeta(&statepb.Meta{State: []byte("stale")})
		b.Put([]byte("x"), []byte("stale"))
	})
	if err := <-p; !errors.Is(err, storage.ErrFenced) {
		rt.Fatalf("a stale activation commits: %v", err)
	}
}

// invalid is refused and changes nothing.
func (m *machine) invalid(rt *rapid.T) {
	mo := m.pick(rt)
	o := m.object(rt, mo)
	if m.held {
		return
	}
	p := commit(o, func(b *storage.Batch) {
		b.PutMeta(&statepb.Meta{State: []byte("invalid")})
		b.Append(uint64(len(mo.latest().log))+2, [][]byte{{1}})
	})
	if err := <-p; !errors.Is(err, storage.ErrInvalid) {
		rt.Fatalf("a gap is committed: %v", err)
	}
}

func (m *machine) hold(*rapid.T) {
	m.disk.Hold()
	m.held = true
}

func (m *machine) release(rt *rapid.T) {
	m.disk.Release()
	m.held = false
	for _, mo := range m.objects {
		m.settle(rt, mo)
	}
}

// forget drops the activations of the process that has ended.
func (m *machine) forget() {
	for _, mo := range m.objects {
		mo.newest, mo.stale, mo.unread = nil, nil, true
	}
}

func (m *machine) restart(rt *rapid.T) {
	m.release(rt)
	if err := m.shop.f.Close(); err != nil {
		rt.Fatalf("close: %v", err)
	}
	m.forget()
	m.start(rt)
}

// crash cuts the power. Of what was not acknowledged, each object keeps some prefix of its commits, and tells which.
func (m *machine) crash(rt *rapid.T) {
	m.seed++
	percent := rapid.SampledFrom([]int{0, 50, 100}).Draw(rt, "percent")
	after := m.disk.Crash(percent, m.seed)
	m.disk.Release()
	m.held = false
	for _, mo := range m.objects {
		for _, p := range mo.done {
			<-p
		}
	}
	if err := m.shop.f.Close(); err != nil {
		rt.Fatalf("close: %v", err)
	}
	m.disk = after
	m.forget()
	m.start(rt)
	for _, mo := range m.objects {
		got := m.read(rt, mo).String()
		candidates := append([]modelState{mo.durable}, mo.pending...)
		i := slices.IndexFunc(candidates, func(s modelState) bool { return s.String() == got })
		if i < 0 {
			rt.Fatalf("after a crash %s holds\n%s\nwhich is after none of its commits:\n%v", mo.name, got, candidates)
		}
		mo.durable, mo.pending, mo.done = candidates[i], nil, nil
	}
}

// check compares what is durable with what readers see, also while commits are held up.
func (m *machine) check(rt *rapid.T) {
	var due, live, names []string
	for _, n := range modelNames {
		mo := m.objects[n]
		if mo.unread || len(mo.pending) > 0 {
			if got, want := m.read(rt, mo).String(), mo.durable.String(); got != want {
				rt.Fatalf("object %s holds\n%s\nwant\n%s", n, got, want)
			}
			mo.unread = len(mo.pending) > 0
		}
		for k, at := range mo.durable.alarms {
			due = append(due, fmt.Sprintf("%s %s %d", n, k, at))
		}
		for turn := range mo.durable.live {
			live = append(live, fmt.Sprintf("%s %d", n, turn))
		}
		if mo.durable.exists {
			names = append(names, n)
		}
	}
	m.same(rt, "due alarms", due, func() (out []string, err error) {
		alarms, err := m.shop.DueAlarms(time.UnixMilli(10), 0)
		if !slices.IsSortedFunc(alarms, func(a, b storage.DueAlarm) int { return a.Due.Compare(b.Due) }) {
			rt.Fatalf("due alarms are out of order: %v", alarms)
		}
		for _, a := range alarms {
			out = append(out, fmt.Sprintf("%s %s %d", a.Address.Name, a.Key, a.Due.UnixMilli()))
		}
		return out, err
	})
	m.same(rt, "live turns", live, func() (out []string, err error) {
		turns, err := m.shop.LiveTurns(0)
		for _, l := range turns {
			out = append(out, fmt.Sprintf("%s %d", l.Address.Name, l.Turn))
		}
		return out, err
	})
	m.same(rt, "names", names, func() ([]string, error) { return m.shop.Names("default", "session", "", 0) })
}

func (m *machine) same(rt *rapid.T, what string, want []string, read func() ([]string, error)) {
	got, err := read()
	if err != nil {
		rt.Fatalf("%s: %v", what, err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		rt.Fatalf("%s are %q, want %q", what, got, want)
	}
}

// read takes an object's records as they are on disk, without an activation: one would wait for commits that are held.
func (m *machine) read(rt *rapid.T, mo *modelObject) modelState {
	s := newModelState()
	ref := m.shop.f.refOf(mo.name)
	frames, err := m.shop.ReadLog(ref, 0, 1<<40, 1<<30)
	if err != nil {
		rt.Fatalf("read log: %v", err)
	}
	for _, f := range frames {
		s.log = append(s.log, string(f.Data))
	}
	reader, err := m.shop.Inspect(address(mo.name))
	if err != nil {
		rt.Fatalf("inspect: %v", err)
	}
	s.exists = reader.Exists()
	if s.exists {
		s.state = string(reader.Meta().State)
	}
	for _, k := range modelKeys {
		v, err := reader.Value([]byte(k))
		if err == nil {
			s.values[k] = string(v)
		} else if !errors.Is(err, storage.ErrNotFound) {
			rt.Fatalf("read value: %v", err)
		}
		for _, id := range modelKeys {
			mid, err := reader.MessageID(k, id)
			if err == nil {
				s.ids[strings.Join([]string{k, id}, "/")] = mid.Turn
			} else if !errors.Is(err, storage.ErrNotFound) {
				rt.Fatalf("read message id: %v", err)
			}
		}
	}
	alarms, err := reader.Alarms()
	if err != nil {
		rt.Fatalf("read alarms: %v", err)
	}
	for _, a := range alarms {
		s.alarms[a.Key] = a.DueUnixMs
	}
	turns, err := reader.Turns(0, 0)
	if err != nil {
		rt.Fatalf("read turns: %v", err)
	}
	for _, t := range turns {
		s.turns[t.Turn] = t.User
	}
	live, err := m.shop.LiveTurns(0)
	if err != nil {
		rt.Fatalf("read live turns: %v", err)
	}
	for _, l := range live {
		if l.Address == address(mo.name) {
			s.live[l.Turn] = true
		}
	}
	return s
}

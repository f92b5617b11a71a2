package actorstest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
	"github.com/holdfast-ai/holdfast/storage/pebble"
)

// Options of New.
type Options struct {
	Kinds  func(prometheus.Registerer) []actors.Kind // made anew for each host
	Models inference.Runner
	// Host, if set, changes the options of each host.
	Host func(*actors.Options)
	// FS is where the store is. Default: a new crashable one in memory.
	FS *vfs.MemFS
	// WrapFS, if set, is what the engine sees of FS: it may block or fail.
	WrapFS func(vfs.FS) vfs.FS
	// Manual leaves Start of each host to the test.
	Manual bool
}

// Harness is a host and all below it. Its methods are safe for concurrent use, but for Crash and Restart.
type Harness struct {
	Clock    *clock.Fake
	Host     *actors.Host
	Store    *storage.Store
	Valve    *Valve
	Registry *prometheus.Registry
	Log      *Log

	tb testing.TB
	o  Options
	fs *vfs.MemFS

	mu struct {
		sync.Mutex
		readers []*Reader
		bytes   map[string]map[uint64][]byte
	}
}

// Epoch is where the harness's clock begins.
var Epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// New starts a host.
func New(tb testing.TB, o Options) *Harness {
	tb.Helper()
	h := &Harness{Clock: clock.NewFake(Epoch), Log: &Log{}, tb: tb, o: o, fs: o.FS}
	h.mu.bytes = make(map[string]map[uint64][]byte)
	if h.fs == nil {
		h.fs = vfs.NewCrashableMem()
	}
	h.open()
	tb.Cleanup(h.close)
	return h
}

func (h *Harness) open() {
	h.tb.Helper()
	var fs vfs.FS = h.fs
	if h.o.WrapFS != nil {
		fs = h.o.WrapFS(fs)
	}
	engine, err := pebble.Open("data", pebble.Options{FS: fs, CacheBytes: 1 << 20, MemTableBytes: 1 << 20, Linger: -1})
	if err != nil {
		h.tb.Fatalf("open the engine: %v", err)
	}
	h.Valve = NewValve(engine)
	if h.Store, err = storage.Open(h.Valve, storage.Options{}); err != nil {
		h.tb.Fatalf("open the store: %v", err)
	}
	h.Valve.forget()
	h.Registry = prometheus.NewRegistry()
	o := actors.Options{
		Store: h.Store, Models: h.o.Models, Clock: h.Clock, Registerer: h.Registry,
		Logger: slog.New(slog.NewTextHandler(h.Log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if h.o.Kinds != nil {
		o.Kinds = h.o.Kinds(h.Registry)
	}
	if h.o.Host != nil {
		h.o.Host(&o)
	}
	if h.Host, err = actors.NewHost(o); err != nil {
		h.tb.Fatalf("new host: %v", err)
	}
	if !h.o.Manual {
		if err := h.Host.Start(context.Background()); err != nil {
			h.tb.Fatalf("start the host: %v", err)
		}
	}
}

// End closes everything, for a test that makes many harnesses.
func (h *Harness) End() { h.close() }

func (h *Harness) close() {
	h.disconnect()
	h.Valve.Flow()
	h.within("closing the host", func() error { return h.Host.Close() })
	h.within("closing the store", func() error { return h.Store.Close() })
}

// within fails the test if f hangs.
func (h *Harness) within(what string, f func() error) {
	h.tb.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			h.tb.Errorf("%s: %v", what, err)
		}
	case <-time.After(Patience):
		panic(what + " hangs") // with all stacks: nothing else says why
	}
}

// disconnect closes every reader.
func (h *Harness) disconnect() {
	h.mu.Lock()
	readers := h.mu.readers
	h.mu.readers = nil
	h.mu.Unlock()
	for _, r := range readers {
		r.Close()
	}
}

// Crash ends the host as a power loss does: of what was not synced, nothing is left. A new host starts on the rest.
// Readers are disconnected; what was on its way gets no answer that counts.
func (h *Harness) Crash() { h.CrashWith(0, nil) }

// CrashWith is Crash where a share of what was not synced, in percent, happened to reach the disk.
func (h *Harness) CrashWith(percent int, rng *rand.Rand) {
	h.tb.Helper()
	h.disconnect()
	fs := h.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
	h.close()
	h.fs = fs
	h.open()
}

// Restart ends the host in good order and starts another.
func (h *Harness) Restart() {
	h.tb.Helper()
	h.close()
	h.open()
}

// saw compares what a reader got with what the others got.
func (h *Harness) saw(tb testing.TB, object string, offset uint64, entry []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.mu.bytes[object]
	if m == nil {
		m = make(map[uint64][]byte)
		h.mu.bytes[object] = m
	}
	if old, ok := m[offset]; ok && !bytes.Equal(old, entry) {
		tb.Errorf("%s: offset %d changed from %x to %x", object, offset, old, entry)
	}
	m[offset] = bytes.Clone(entry)
}

// Attach opens a reader; it fails the test if it cannot.
func (h *Harness) Attach(p proto.Principal, object string, a *wirepb.Attach) *Reader {
	h.tb.Helper()
	r, err := h.TryAttach(p, object, a)
	if err != nil {
		h.tb.Fatalf("attach to %s: %v", object, err)
	}
	return r
}

// After is an Attach after an offset of the present incarnation.
func After(offset uint64) *wirepb.Attach {
	return &wirepb.Attach{After: &wirepb.Cursor{Offset: offset}}
}

// TryAttach opens a reader.
func (h *Harness) TryAttach(p proto.Principal, object string, a *wirepb.Attach) (*Reader, error) {
	r := &Reader{h: h, tb: h.tb, object: object, wake: make(chan struct{}, 1)}
	c, err := h.Host.Attach(context.Background(), p, object, a, func() {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return nil, err
	}
	r.Cursor, r.Attached, r.last = c, c.Attached(), c.Attached().From.Offset
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.readers = append(h.mu.readers, r)
	return r, nil
}

// Send dispatches a frame and returns where the answer arrives.
func (h *Harness) Send(p proto.Principal, f *wirepb.Frame) <-chan *wirepb.Frame {
	answer := make(chan *wirepb.Frame, 2)
	h.Host.Dispatch(context.Background(), p, f, func(f *wirepb.Frame) { answer <- f })
	return answer
}

// Await receives an answer; it fails the test when that takes too long.
func (h *Harness) Await(answer <-chan *wirepb.Frame) *wirepb.Frame {
	h.tb.Helper()
	select {
	case f := <-answer:
		return f
	case <-time.After(Patience):
		h.tb.Fatalf("no answer")
		return nil
	}
}

// SubmitFrame makes one.
func SubmitFrame(object, id, text string, o *wirepb.Options) *wirepb.Frame {
	return &wirepb.Frame{Object: object, Request: 1, Body: &wirepb.Frame_Submit{Submit: &wirepb.Submit{
		MessageId: id, Text: text, Options: o,
	}}}
}

// StopFrame makes one.
func StopFrame(object string, turn uint64) *wirepb.Frame {
	return &wirepb.Frame{Object: object, Request: 2, Body: &wirepb.Frame_Stop{Stop: &wirepb.Stop{Turn: turn}}}
}

// Do dispatches a frame and waits for the answer.
func (h *Harness) Do(p proto.Principal, f *wirepb.Frame) *wirepb.Frame {
	h.tb.Helper()
	return h.Await(h.Send(p, f))
}

// Accept submits a text, requires that it is accepted, and returns its turn.
func (h *Harness) Accept(p proto.Principal, object, id, text string) uint64 {
	h.tb.Helper()
	f := h.Do(p, SubmitFrame(object, id, text, nil))
	if f.GetAccepted() == nil {
		h.tb.Fatalf("submit %q to %s: %v", id, object, f)
	}
	return f.GetAccepted().Turn
}

// Metric is the sum of a metric over all its labels.
func (h *Harness) Metric(name string) float64 {
	h.tb.Helper()
	families, err := h.Registry.Gather()
	if err != nil {
		h.tb.Fatalf("gather: %v", err)
	}
	var v float64
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.Metric {
				v += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return v
}

// AwaitMetric waits until a metric has a value: for what nothing else announces, such as an activation that is dropped.
func (h *Harness) AwaitMetric(name string, want float64) {
	h.tb.Helper()
	for deadline := time.Now().Add(Patience); h.Metric(name) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			h.tb.Fatalf("%s is %v and not %v", name, h.Metric(name), want)
		}
	}
}

// AwaitAlarmAfter waits until the next durable alarm is due after t and returns when.
func (h *Harness) AwaitAlarmAfter(t time.Time) time.Time {
	h.tb.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(time.Millisecond) {
		due, ok, err := h.Store.NextAlarm()
		if err != nil {
			h.tb.Fatal(err)
		}
		if ok && due.After(t) {
			return due
		}
		if time.Now().After(deadline) {
			h.tb.Fatalf("there is no alarm after %v", t)
		}
	}
}

// Log collects what is logged.
type Log struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is everything so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// User makes a principal.
func User(namespace, user string) proto.Principal {
	return proto.Principal{Namespace: namespace, User: user}
}

// Code is the code of a refusal, "" if f is none.
func Code(f *wirepb.Frame) proto.Code {
	if e := f.GetError(); e != nil {
		return proto.Code(e.Code)
	}
	return ""
}

// Describe is a short form of an entry for comparing logs, without what differs from run to run.
func Describe(e *wirepb.Entry) string {
	switch b := e.Body.(type) {
	case *wirepb.Entry_UserMessage:
		return "user " + b.UserMessage.MessageId
	case *wirepb.Entry_Attempt:
		return fmt.Sprintf("attempt %d from %d", b.Attempt.Number, b.Attempt.ResumedStep)
	case *wirepb.Entry_Chunk:
		return "chunk"
	case *wirepb.Entry_ToolCall:
		return "tool " + b.ToolCall.Name
	case *wirepb.Entry_Terminal:
		return strings.ToLower(strings.TrimPrefix(b.Terminal.Outcome.String(), "OUTCOME_")) + " " +
			b.Terminal.FinishReason + b.Terminal.GetError().GetCode()
	case *wirepb.Entry_State:
		return "state " + b.State.Key
	}
	return fmt.Sprintf("%T", e.Body)
}

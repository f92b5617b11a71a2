package session_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/actors/session"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
	"github.com/holdfast-ai/holdfast/storage/pebble"
)

// disk is a host over a store on the machine's disk, with real syncs and the real clock.
func disk(b *testing.B, models inference.Runner, o session.Options) *actors.Host {
	b.Helper()
	engine, err := pebble.Open(b.TempDir(), pebble.Options{})
	if err != nil {
		b.Fatal(err)
	}
	store, err := storage.Open(engine, storage.Options{})
	if err != nil {
		b.Fatal(err)
	}
	host, err := actors.NewHost(actors.Options{Store: store, Models: models, Kinds: []actors.Kind{session.Kind(o)}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := host.Close(); err != nil {
			b.Error(err)
		}
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	return host
}

// flood answers with n tokens as fast as they are taken.
type flood struct{ n int }

func (f flood) Run(_ context.Context, _ *inference.Request, emit func(inference.Chunk) error) (inference.Usage, error) {
	for i := range f.n {
		if err := emit(inference.Chunk{Text: " word", Tokens: []uint32{uint32(i)}, Step: i}); err != nil {
			return inference.Usage{}, err
		}
	}
	return inference.Usage{CompletionTokens: f.n, Finish: inference.FinishLength}, nil
}

// BenchmarkSubmitToAccepted is the time from a Submit until its durable acknowledgement, one at a time.
func BenchmarkSubmitToAccepted(b *testing.B) {
	host := disk(b, flood{0}, session.Options{})
	answers := make(chan *wirepb.Frame, 1)
	for i := 0; b.Loop(); i++ {
		f := &wirepb.Frame{Object: fmt.Sprint("default/session/", i%64), Body: &wirepb.Frame_Submit{Submit: &wirepb.Submit{
			MessageId: fmt.Sprint(i), Text: "hello",
		}}}
		host.Dispatch(context.Background(), alice, f, func(f *wirepb.Frame) { answers <- f })
		if f := <-answers; f.GetAccepted() == nil {
			b.Fatal(f)
		}
	}
}

// BenchmarkIdleSession is what a session costs that has answered and rests in memory. One op is one session.
func BenchmarkIdleSession(b *testing.B) {
	host := disk(b, flood{1}, session.Options{})
	answers := make(chan *wirepb.Frame, 1)
	before := heap()
	b.ResetTimer()
	for i := range b.N {
		f := &wirepb.Frame{Object: fmt.Sprint("default/session/", i), Body: &wirepb.Frame_Submit{Submit: &wirepb.Submit{
			MessageId: "m", Text: "hello",
		}}}
		host.Dispatch(context.Background(), alice, f, func(f *wirepb.Frame) { answers <- f })
		if f := <-answers; f.GetAccepted() == nil {
			b.Fatal(f)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(int64(heap())-int64(before))/float64(b.N), "heapB/op")
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkToken is what a token costs from the runner's emit to a reader, durable on the way. One op is one token.
func BenchmarkToken(b *testing.B) {
	host := disk(b, flood{b.N}, session.Options{})
	wake := make(chan struct{}, 1)
	c, err := host.Attach(context.Background(), alice, chat, nil, func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	b.ResetTimer()
	f := &wirepb.Frame{Object: chat, Body: &wirepb.Frame_Submit{Submit: &wirepb.Submit{MessageId: "m", Text: "hello"}}}
	host.Dispatch(context.Background(), alice, f, func(*wirepb.Frame) {})
	for done := false; !done; {
		items, err := c.Next(context.Background(), nil, 64<<10)
		if err != nil {
			b.Fatal(err)
		}
		if len(items) == 0 {
			<-wake
		}
		for _, it := range items {
			done = done || it.Status.GetPhase() == wirepb.Phase_PHASE_IDLE
		}
	}
}

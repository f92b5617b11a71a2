package actors

import (
	"context"
	"log/slog"
	"testing"
)

// TestEffectEndsOnce takes an effect's end together with items that were announced before it: the signal that the end
// itself has sent must not bring a second Output that says Done, which would end whatever runs under the key by then.
func TestEffectEndsOnce(t *testing.T) {
	a := &Activation{host: &Host{o: Options{StreamItems: 8, StreamBytes: 1 << 10}}, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	e := &effect{a: a, key: "k", ctx: ctx, cancel: cancel}
	e.mu.signaled = true // posts nothing: this test is the mailbox

	if err := e.emit("item", 1); err != nil {
		t.Fatal(err)
	}
	if _, output := e.heard(); !output {
		t.Fatal("an item was emitted, and there is no output to take")
	}
	e.mu.signaled = true // the end's signal is on its way
	e.finish("result", nil)
	out := e.take()
	if !out.Done || len(out.Items) != 1 || out.Result != "result" {
		t.Fatalf("took %+v, want the item and the end", out)
	}
	if _, output := e.heard(); output {
		t.Error("the signal of an end that was taken brings another output")
	}
}

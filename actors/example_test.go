package actors_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cockroachdb/pebble/v2/vfs"
	pb "google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/actors/session"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
	"github.com/holdfast-ai/holdfast/storage/pebble"
)

// parrot is a model that says what it was told.
type parrot struct{}

func (parrot) Run(_ context.Context, r *inference.Request, emit func(inference.Chunk) error) (inference.Usage, error) {
	last := r.Messages[len(r.Messages)-1]
	return inference.Usage{Finish: inference.FinishStop}, emit(inference.Chunk{Text: last.Content})
}

func Example() {
	ctx := context.Background()
	engine, err := pebble.Open("data", pebble.Options{FS: vfs.NewMem()})
	if err != nil {
		log.Fatal(err)
	}
	store, err := storage.Open(engine, storage.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	host, err := actors.NewHost(actors.Options{
		Store: store, Models: parrot{}, Kinds: []actors.Kind{session.Kind(session.Options{})},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	if err := host.Start(ctx); err != nil {
		log.Fatal(err)
	}

	who := proto.Principal{Namespace: "default", User: "local"}
	wake := make(chan struct{}, 1)
	cursor, err := host.Attach(ctx, who, "default/session/demo", &wirepb.Attach{}, func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	if err != nil {
		log.Fatal(err)
	}
	defer cursor.Close()
	host.Dispatch(ctx, who, &wirepb.Frame{
		Object: "default/session/demo",
		Body:   &wirepb.Frame_Submit{Submit: &wirepb.Submit{MessageId: "m1", Text: "hello"}},
	}, func(f *wirepb.Frame) {})

	for {
		items, err := cursor.Next(ctx, nil, 64<<10)
		if err != nil {
			log.Fatal(err)
		}
		if len(items) == 0 {
			<-wake
		}
		for _, item := range items {
			var e wirepb.Entry
			if item.Entry == nil || pb.Unmarshal(item.Entry, &e) != nil {
				continue
			}
			fmt.Print(e.GetChunk().GetText())
			if e.GetTerminal() != nil {
				fmt.Println(" /", e.GetTerminal().Outcome)
				return
			}
		}
	}
	// Output: hello / OUTCOME_COMPLETED
}

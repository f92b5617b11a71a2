package storage_test

import (
	"fmt"
	"log"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-ai/holdfast/proto/statepb"
	"github.com/holdfast-ai/holdfast/storage"
	"github.com/holdfast-ai/holdfast/storage/pebble"
)

func Example() {
	engine, err := pebble.Open("data", pebble.Options{FS: vfs.NewMem()})
	if err != nil {
		log.Fatal(err)
	}
	store, err := storage.Open(engine, storage.Options{})
	if err != nil {
		log.Fatal(err)
	}
	o, err := store.Activate(storage.Address{Namespace: "default", Kind: "session", Name: "demo"})
	if err != nil {
		log.Fatal(err)
	}
	b := o.NewBatch()
	if !o.Exists() {
		b.PutMeta(&statepb.Meta{KindVersion: 1})
	}
	b.Append(o.LastOffset()+1, [][]byte{[]byte("hello"), []byte("world")})
	durable := make(chan error, 1)
	o.Commit(b, func(err error) { durable <- err })
	if err := <-durable; err != nil {
		log.Fatal(err)
	}
	frames, err := store.ReadLog(o.Ref(), 0, 2, 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range frames {
		fmt.Printf("%d %s\n", f.Offset, f.Data)
	}
	o.Release()
	if err := store.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1 hello
	// 2 world
}

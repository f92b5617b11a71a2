// Package storage keeps the state of durable objects: a log of frames, an index of turns, alarms, message ids and the
// kind's own values.
//
// Its central type is Store, which is over an Engine (package storage/pebble on one node). An Object is one
// activation's hold on one object; a Batch is one atomic commit of it:
//
//	engine, err := pebble.Open(dir, pebble.Options{})
//	store, err := storage.Open(engine, storage.Options{})
//	o, err := store.Activate(address)   // claims a new epoch: older activations can commit no more
//	b := o.NewBatch()
//	if !o.Exists() {
//		b.PutMeta(&statepb.Meta{})      // creates the object
//	}
//	b.Append(o.LastOffset()+1, frames)
//	o.Commit(b, func(err error) {       // called when b is on disk
//		…                               // only now may anybody hear of the frames
//	})
//	…
//	o.Release()
//	err = store.Close()
//
// # What the caller must do
//
// Commit one object from one goroutine, in the order in which things happened. Treat any error of a commit as the end
// of the activation: whether it is on disk is not known after a failed write, and everything later fails too. Not block
// in the function given to Commit. Close the store last.
//
// # What the store promises
//
// The invariants of the design that live here:
//
//	1  One writer: a commit is refused with ErrFenced unless its activation is the latest of the object.
//	2  Durable before visible: every read, of any record, from any goroutine, shows only what is on disk. A new
//	   activation waits for the commits of earlier ones.
//	3  Offsets are dense and never change: a commit that would leave a gap is refused, a gap that is found is damage.
//	8  One bad record stops one object: it is quarantined, that is, it can be neither activated nor changed until the
//	   next start finds it repaired. All others are served.
//
// Reads of records that were committed and are not yet durable are the caller's business: an activation keeps its own
// uncommitted writes in memory anyway.
//
// # On disk
//
// keys.go has the layout of keys, record.go the frame of records, and proto/statepb the payloads. All three are the
// format, whose number is in the Node record; a release refuses a folder with a newer one.
package storage

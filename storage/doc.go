// Package storage keeps the durable state of objects: typed records over an Engine of ordered bytes.
//
// The central type is Store. An activation claims an object, reads through it, and commits batches that are atomic and
// asynchronous; readers of a log need no activation:
//
//	o, err := store.Activate(storage.Address{Namespace: "default", Kind: "session", Name: "s1"})
//	if err != nil { … }
//	defer o.Release()
//	b := o.NewBatch()
//	if !o.Exists() {
//		b.PutMeta(&statepb.Meta{…})
//	}
//	b.Append(o.LastOffset()+1, frames)
//	o.Commit(b, func(err error) { … }) // called once the batch is on disk, or was refused
//	frames, err := store.ReadLog(o.Ref(), after, upTo, 64<<10)
//
// # What it promises
//
//  1. One writer (invariant 1). Activate claims an epoch; a commit that carries an older one fails with ErrFenced. The
//     comparison happens in the engine, in the order of commits.
//  2. Nothing is reported durable before it is (invariant 2). An engine may show a batch to readers before it is
//     synced, so a reader outside the activation passes the offset that it may see up to; and Activate waits until
//     every commit of the object's earlier activations is on disk or refused, so that what it reads are facts.
//  3. One bad record stops one object (invariant 8). A record carries a checksum that also covers its key; a record that
//     fails it is ErrCorrupt, with object and key.
//
// # Keys
//
// Every key starts with a space and a shard (big-endian; 0 on one node), so that a shard is a few ranges:
//
//	'o' shard hash[16] incarnation[4] sub …   an object's records; hash is the start of SHA-256(address)
//	      sub 'm'                             meta
//	      sub 'l' first[8]                    log record that starts at offset first
//	      sub 't' turn[8]                     turn
//	      sub 'i' user 0 id                   message id
//	      sub 'v' key                         value of the kind
//	      sub 'a' key                         alarm
//	'n' shard namespace 0 kind 0 name         name index: the present incarnation
//	'd' shard due[8] hash incarnation key     due alarms
//	'w' shard hash incarnation turn[8]        live turns
//	'!' 'n'                                   the node's own record
//
// The indexes change in the same batch as their object. Split ends an object's prefix after the incarnation, and an index
// key's after the whole key, so that a bloom filter decides a missing object without reading a block.
//
// # Records
//
//	version[1] key-id[4] payload … checksum[4]
//
// payload is a protobuf message of package statepb; key-id names the data key that encrypts it, 0 being none; checksum is
// CRC-32C over the key, then everything before it.
package storage

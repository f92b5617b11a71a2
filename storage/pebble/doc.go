// Package pebble is the storage engine of one node: one Pebble in one folder, for all of its objects.
//
// Its central type is Engine, which implements storage.Engine. commit.go says how commits of many objects share one
// sync and how they are fenced; view.go how readers see only what is durable; fuse.go what happens when the disk fails.
//
//	e, err := pebble.Open(dir, pebble.Options{Logger: log, Registerer: registry})
//	s, err := storage.Open(e, storage.Options{})
//	…
//	err = s.Close() // closes e too
//
// The caller closes every view soon and every iterator before its view. When a write or a sync of the log has failed,
// commits fail with storage.ErrReadOnly from then on, and reads go on; what is on disk stays as it is until the folder
// is opened again.
package pebble

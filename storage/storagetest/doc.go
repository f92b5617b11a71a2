// Package storagetest tests storage engines, and the store on top of them, against what they promise.
//
// Its central function is Run, which every engine's tests call with a function that opens the engine on a file system:
//
//	func TestEngine(t *testing.T) {
//		storagetest.Run(t, func(fs vfs.FS) (storage.Engine, error) {
//			return pebble.Open("data", pebble.Options{FS: fs})
//		})
//	}
//
// Disk is a disk in memory that loses what was not synced when it crashes, whose syncs can be held up and whose writes
// can be made to fail. Tests of other packages use it to hold durability up while they look for what leaks.
package storagetest

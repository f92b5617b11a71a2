package pebble_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-ai/holdfast/storage"
	"github.com/holdfast-ai/holdfast/storage/pebble"
	"github.com/holdfast-ai/holdfast/storage/storagetest"
)

func TestEngine(t *testing.T) {
	storagetest.Run(t, func(fs vfs.FS) (storage.Engine, error) {
		return pebble.Open("data", pebble.Options{FS: fs, CacheBytes: 1 << 20, MemTableBytes: 1 << 20})
	})
}

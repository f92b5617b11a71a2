package pebble

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"

	"github.com/holdfast-ai/holdfast/storage"
)

// formatMajorVersion is what this release writes, and the newest that it opens. It is a constant so that an update of
// Pebble never changes a data folder: raise it in a release of its own, after which older releases refuse the folder.
// It is the newest one without value separation, which is experimental.
const formatMajorVersion = pebble.FormatTableFormatV6

// comparerName is written into every data folder and must never change.
const comparerName = "holdfast.object.v1"

// keySchemaBundle is part of the name of the key schema, which is permanent too.
const keySchemaBundle = 16

// newComparer orders keys as bytes and splits them where storage says.
func newComparer() *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Name = comparerName
	c.Split = storage.PrefixLen
	c.ComparePointSuffixes = bytes.Compare
	c.CompareRangeSuffixes = bytes.Compare
	c.ImmediateSuccessor = nil // no range keys
	return &c
}

func newKeySchema(c *pebble.Comparer) colblk.KeySchema {
	return colblk.DefaultKeySchema(c, keySchemaBundle)
}

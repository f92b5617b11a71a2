//go:build !unix

package pebble_test

import (
	"testing"
	"time"
)

// processorTime is not measured here.
func processorTime(*testing.B) time.Duration { return 0 }

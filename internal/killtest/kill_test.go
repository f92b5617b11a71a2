package killtest

import (
	"os"
	"strconv"
	"testing"
)

// TestKill is ten rounds by default; HOLDFAST_ROUNDS and HOLDFAST_SEED make it a torture run.
func TestKill(t *testing.T) {
	h := New(t, Options{Rounds: env(t, "HOLDFAST_ROUNDS", 10), Seed: uint64(env(t, "HOLDFAST_SEED", 1)), Echo: 12, Model: 2})
	h.Run()
	if !t.Failed() {
		h.Verify()
	}
}

func env(t *testing.T, name string, otherwise int) int {
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("%s=%q is not a number", name, v)
	}
	return n
}

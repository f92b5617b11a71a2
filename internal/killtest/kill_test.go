package killtest

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// TestKillModel lets the real model speak for some seconds before each death, so that answers are cut in mid-sentence.
func TestKillModel(t *testing.T) {
	h := New(t, Options{Rounds: env(t, "HOLDFAST_MODEL_ROUNDS", 3), Seed: uint64(env(t, "HOLDFAST_SEED", 1)), Echo: 1, Model: 2,
		MinLife: 2500 * time.Millisecond, MaxLife: 5 * time.Second})
	h.Run()
	if !t.Failed() {
		h.Verify()
	}
}

// TestKill is ten rounds by default; HOLDFAST_ROUNDS and HOLDFAST_SEED make it a torture run.
func TestKill(t *testing.T) {
	h := New(t, Options{Rounds: env(t, "HOLDFAST_ROUNDS", 10), Seed: uint64(env(t, "HOLDFAST_SEED", 1)), Echo: 12})
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

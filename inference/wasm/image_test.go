package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-ai/holdfast/inference"
)

// tinyImage opens m once and returns its image's path and bytes.
func tinyImage(t *testing.T, m *tinyModel, cache string) (string, []byte) {
	t.Helper()
	openTiny(t, m, cache, Options{})
	names, err := filepath.Glob(filepath.Join(cache, "weights-*.image"))
	if err != nil || len(names) != 1 {
		t.Fatalf("images: %v, %v", names, err)
	}
	data, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	return names[0], data
}

// openLogged opens m and returns what was logged.
func openLogged(t *testing.T, src Source, o Options) (*Stepper, string) {
	t.Helper()
	var log bytes.Buffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s, err := OpenStepper(t.Context(), src, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, log.String()
}

func TestSoundImageIsUsed(t *testing.T) {
	m, cache := newTinyModel(true), t.TempDir()
	tinyImage(t, m, cache)
	src := m.source(t, cache)
	for _, weights := range m.data {
		clear(weights) // the image has them
	}
	src.File = m.file(t)
	s, log := openLogged(t, src, Options{MaxLogits: 64})
	if log != "" {
		t.Fatalf("opening from a sound image logged: %s", log)
	}
	fresh := openTiny(t, newTinyModel(true), t.TempDir(), Options{MaxLogits: 64})
	tokens := randomTokens(40, tinyVocabulary)
	equalLogits(t, "from the image", forced(t, fresh, 0, 40, tokens), forced(t, s, 0, 40, tokens))
}

// TestDamagedImageIsMadeAgain flips, cuts and extends. The image that takes its place must be the sound one.
func TestDamagedImageIsMadeAgain(t *testing.T) {
	m, cache := newTinyModel(true), t.TempDir()
	path, sound := tinyImage(t, m, cache)
	flip := func(at int) []byte {
		damaged := slices.Clone(sound)
		damaged[at] ^= 1 << (at % 8)
		return damaged
	}
	damages := map[string][]byte{
		"empty": {}, "cut": sound[:len(sound)-1], "longer": append(slices.Clone(sound), 0), "only a header": sound[:imageAlign],
		"first byte": flip(0), "format": flip(8), "source": flip(12), "last byte": flip(len(sound) - 1),
		"header's padding": flip(imageAlign - 100), "header's checksum": flip(imageAlign - 1),
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		at := rng.IntN(len(sound))
		damages["byte "+string(rune('a'+len(damages)))] = flip(at)
	}
	for name, damaged := range damages {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		_, log := openLogged(t, m.source(t, cache), Options{})
		if !strings.Contains(log, "packing weights again") {
			t.Errorf("%s: the damage went unnoticed: %s", name, log)
		}
		if mended, err := os.ReadFile(path); err != nil || !bytes.Equal(mended, sound) {
			t.Errorf("%s: the image was not mended: %v", name, err)
		}
	}
}

func TestStaleImageIsNotUsed(t *testing.T) {
	m, cache := newTinyModel(true), t.TempDir()
	path, _ := tinyImage(t, m, cache)
	other := newTinyModel(true) // of the same shape
	clear(other.data["blk.1.ffn_down.weight"])
	src := other.source(t, cache)
	// As if two sources shared a name: the header must tell them apart.
	if err := os.Rename(path, identify(src.SHA256, shape{}, &weightLayout{}).path(cache)); err != nil {
		t.Fatal(err)
	}
	s, log := openLogged(t, src, Options{MaxLogits: 64})
	if !strings.Contains(log, "packing weights again") {
		t.Fatalf("the image of another model was used: %s", log)
	}
	want := openTiny(t, other, t.TempDir(), Options{MaxLogits: 64})
	tokens := randomTokens(20, tinyVocabulary)
	equalLogits(t, "beside a stale image", forced(t, want, 0, 20, tokens), forced(t, s, 0, 20, tokens))
}

func TestConcurrentLoadsShareAFolder(t *testing.T) {
	m, cache := newTinyModel(true), t.TempDir()
	tokens := randomTokens(30, tinyVocabulary)
	want := forced(t, openTiny(t, m, t.TempDir(), Options{MaxLogits: 64}), 0, 30, tokens)
	var wg sync.WaitGroup
	for range 6 {
		src := m.source(t, cache)
		wg.Go(func() {
			s, err := OpenStepper(t.Context(), src, Options{MaxLogits: 64})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			logits, err := s.Step(t.Context(), rowsOf(0, 0, tokens))
			if err != nil {
				t.Error(err)
				return
			}
			for i := range want {
				if !slices.Equal(want[i], logits[i]) {
					t.Errorf("logits differ after token %d", i)
					return
				}
			}
		})
	}
	wg.Wait()
	left, err := filepath.Glob(filepath.Join(cache, ".weights-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestUnusableCacheFolderCostsTimeOnly has a file where the folder should be.
func TestUnusableCacheFolderCostsTimeOnly(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	if err := os.WriteFile(cache, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, log := openLogged(t, newTinyModel(true).source(t, cache), Options{})
	for _, want := range []string{"could not be kept", "compiling without a cache"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q: %s", want, log)
		}
	}
	mustStep(t, s, rowsOf(0, 0, []uint32{1, 2, 3}))
}

func TestCompiledCodeOthersCanWriteIsNotRun(t *testing.T) {
	if !onUnix {
		return // no permission bits to check
	}
	cache := t.TempDir()
	dir := filepath.Join(cache, "compiled")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, log := openLogged(t, newTinyModel(true).source(t, cache), Options{})
	if !strings.Contains(log, "compiling without a cache") {
		t.Errorf("nothing was logged: %s", log)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the folder was used: %v, %v", entries, err)
	}
}

func TestAbandonedFilesAreRemoved(t *testing.T) {
	cache := t.TempDir()
	old, young := filepath.Join(cache, ".weights-1.tmp"), filepath.Join(cache, ".weights-2.tmp")
	for _, name := range []string{old, young} {
		if err := os.WriteFile(name, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-2 * abandonedAge)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	tinyImage(t, newTinyModel(true), cache)
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an abandoned file is still there: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("a file that may be being written was removed: %v", err)
	}
}

func TestCancelledLoadLeavesNothing(t *testing.T) {
	m, cache := newTinyModel(true), t.TempDir()
	cause := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	src := m.source(t, cache)
	src.Progress = func(_, _ int64) { cancel(cause) }
	if _, err := OpenStepper(ctx, src, Options{}); !errors.Is(err, cause) {
		t.Fatalf("got %v, want the cause", err)
	}
	if entries, err := os.ReadDir(cache); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestProgressEndsWithEverything(t *testing.T) {
	m, cache := newTinyModel(true), t.TempDir()
	for _, how := range []string{"packing", "reading"} {
		var last, all int64
		src := m.source(t, cache)
		src.Progress = func(done, total int64) {
			if done < last || done > total {
				t.Errorf("%s: %d of %d after %d", how, done, total, last)
			}
			last, all = done, total
		}
		s, err := OpenStepper(t.Context(), src, Options{})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if last != all || all == 0 {
			t.Errorf("%s: ended at %d of %d", how, last, all)
		}
	}
}

func TestWrongGuestIsRefused(t *testing.T) {
	m := newTinyModel(true)
	damaged := llamaGuest()
	damaged.code = slices.Clone(damaged.code)
	damaged.code[len(damaged.code)/2] ^= 1
	foreign := guestModule{code: []byte("\x00asm\x01\x00\x00\x00")}
	foreign.sha256 = hexSum(foreign.code)
	for name, g := range map[string]guestModule{"damaged": damaged, "without exports": foreign} {
		_, err := openStepper(t.Context(), m.source(t, t.TempDir()), g, Options{})
		if !errors.Is(err, inference.ErrModelUnavailable) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

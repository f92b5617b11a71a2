package wasm

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

//go:generate sh guest/build.sh

// llamaModule is built from the C sources beside it by guest/build.sh; llamaDigest is its SHA-256.
var (
	//go:embed guest/llama.wasm
	llamaModule []byte
	//go:embed guest/llama.wasm.sha256
	llamaDigest string
)

// guestModule is a guest's code and the digest that it must have.
type guestModule struct {
	code   []byte
	sha256 string // hex
}

func llamaGuest() guestModule { return guestModule{llamaModule, strings.TrimSpace(llamaDigest)} }

// verify refuses code that is not what was built: a damaged binary, or a build without `make guests`.
func (g guestModule) verify() error {
	sum := sha256.Sum256(g.code)
	if got := hex.EncodeToString(sum[:]); got != g.sha256 {
		return fmt.Errorf("the guest module has SHA-256 %s instead of %s: rebuild it with guest/build.sh", got, g.sha256)
	}
	return nil
}

// guestRuntime is a wazero runtime with the guest's imports and its compiled code.
type guestRuntime struct {
	runtime wazero.Runtime
	code    wazero.CompiledModule
	cache   wazero.CompilationCache // nil: none
}

// compileGuest compiles the guest, through the cache of compiled code in dir where that is possible: an unusable cache
// costs some 50 ms and is logged.
func compileGuest(ctx context.Context, g guestModule, dir string, log *slog.Logger) (*guestRuntime, error) {
	if err := g.verify(); err != nil {
		return nil, err
	}
	cache, err := openCompileCache(dir)
	if err == nil {
		var r *guestRuntime
		if r, err = compileWith(ctx, g, cache); err == nil {
			return r, nil
		}
		err = errors.Join(err, cache.Close(ctx))
	}
	log.Warn("compiling without a cache", "dir", dir, "err", err)
	return compileWith(ctx, g, nil)
}

// openCompileCache opens the folder of compiled code. It holds native code that this process will run, so a folder that
// others can write is refused.
func openCompileCache(dir string) (wazero.CompilationCache, error) {
	dir = filepath.Join(dir, "compiled")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() || othersCanWrite(st.Mode()) {
		return nil, fmt.Errorf("%s has mode %v: it holds compiled code and must be a folder that only its owner can write", dir, st.Mode())
	}
	return wazero.NewCompilationCacheWithDir(dir)
}

func compileWith(ctx context.Context, g guestModule, cache wazero.CompilationCache) (*guestRuntime, error) {
	config := wazero.NewRuntimeConfig()
	if cache != nil {
		config = config.WithCompilationCache(cache)
	}
	r := &guestRuntime{runtime: wazero.NewRuntimeWithConfig(ctx, config)}
	_, err := r.runtime.NewHostModuleBuilder("holdfast").NewFunctionBuilder().
		WithGoFunction(api.GoFunc(yield), nil, []api.ValueType{api.ValueTypeI32}).Export("yield").
		Instantiate(ctx)
	if err == nil {
		r.code, err = r.runtime.CompileModule(ctx, g.code)
	}
	if err != nil {
		return nil, fmt.Errorf("compiling the guest: %w", errors.Join(err, r.runtime.Close(ctx)))
	}
	r.cache = cache
	return r, nil
}

// yield is where the guest lets Go stop the world, and learns that its step is no longer wanted.
func yield(ctx context.Context, stack []uint64) {
	stack[0] = 0
	if ctx.Err() != nil {
		stack[0] = 1
	}
}

func (r *guestRuntime) close(ctx context.Context) error {
	err := r.runtime.Close(ctx)
	if r.cache != nil {
		err = errors.Join(err, r.cache.Close(ctx))
	}
	return err
}

func othersCanWrite(m fs.FileMode) bool { return onUnix && m.Perm()&0o022 != 0 }

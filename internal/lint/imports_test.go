package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/holdfast-ai/holdfast"

// anywhere may be imported by every package.
var anywhere = []string{"internal/clock", "internal/invariants"}

// layers says which packages of ours a package may import beside those. "x/..." are x and everything below it. A
// package that is not here has no place yet: a reviewer decides on one.
var layers = map[string][]string{
	"cmd/holdfast": {"."},
	".":            {"internal/cli", "actors"},

	"internal/cli":     {"internal/node", "models", "inference", "inference/fetch", "actors", "proto/...", "transport", "transport/client"},
	"internal/node":    {"internal/metrics", "models", "web", "actors/...", "inference/...", "storage/...", "transport/...", "proto/..."},
	"internal/metrics": {}, "internal/lint": {}, "internal/clock": {}, "internal/invariants": {},

	"transport": {"proto/...", "transport/ws"}, "transport/ws": {}, "transport/client": {"proto/..."},

	"actors": {"storage", "inference", "proto/..."}, "actors/session": {"actors", "inference", "proto/..."},

	"storage": {"proto/statepb"}, "storage/pebble": {"storage"},

	// Formats know at most the types of inference; the scheduler too; runtimes use both and never each other.
	"inference": {}, "inference/fetch": {"inference"},
	"inference/gguf": {}, "inference/tokenizer": {"inference", "inference/gguf"}, "inference/template": {"inference"},
	"inference/scheduler": {"inference"},
	"inference/wasm":      {"inference", "inference/gguf", "inference/tokenizer", "inference/template", "inference/scheduler"},
	"inference/echo":      {"inference", "inference/scheduler"},

	"models": {"inference"}, "web": {},
	"proto": {"proto/wirepb"}, "proto/wirepb": {}, "proto/statepb": {},
}

// forTests are packages that only tests and benchmarks use: nothing in the product may import them.
var forTests = map[string][]string{
	"actors/actorstest":        {"actors/...", "storage/...", "inference/...", "proto/..."},
	"storage/storagetest":      {"storage/...", "proto/statepb"},
	"inference/inferencetest":  {"inference/..."},
	"inference/gguf/gguftest":  {"inference/gguf"},
	"transport/transporttest":  {"transport/...", "proto/..."},
	"internal/killtest":        {"proto/..."}, // not transport: a mistake there must not hide one of the server
	"internal/wiretest":        {"proto/..."},
	"internal/testmodel":       {"models", "inference", "inference/fetch"},
	"internal/lint":            {},
	"bench/...":                {"proto/...", "inference/...", "internal/testmodel", "models"},
	"inference/wasm/guest/...": {},
	"inference/tokenizer/...":  {"inference/..."},
	"inference/template/...":   {"inference/..."},
}

// owners are the packages that may import a dependency: everybody else works with the owner's types.
var owners = map[string][]string{
	"github.com/asynkron/protoactor-go": {"actors"},
	"github.com/cockroachdb/pebble":     {"storage/pebble", "storage/storagetest", "actors/actorstest"},
	"github.com/tetratelabs/wazero":     {"inference/wasm"},
	"github.com/gorilla/websocket":      {"transport/ws", "transport/client", "internal/killtest", "internal/wiretest", "bench/..."},
	"github.com/spf13/cobra":            {"internal/cli"},
	"github.com/knadh/koanf":            {"internal/cli"},
	"github.com/schollz/progressbar":    {"internal/cli"},
	"golang.org/x/term":                 {"internal/cli"},
	"testing":                           {"actors/actorstest", "storage/storagetest", "inference/inferencetest", "inference/gguf/gguftest", "transport/transporttest", "internal/killtest", "internal/wiretest", "internal/testmodel"},
	"unsafe":                            {"inference/wasm", "proto/wirepb", "proto/statepb"},
}

type listed struct {
	ImportPath string
	Dir        string
	Imports    []string
	Standard   bool
}

// list runs go list in the module's root.
func list(t *testing.T, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Imports,Standard"}, args...)...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the product is built
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	var all []listed
	d := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// root is the folder of the module: tests run in that of their package.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// ours is a package's path below the module, "." for its root.
func ours(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// covers reports whether one of patterns stands for a package.
func covers(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if parent, ok := strings.CutSuffix(p, "/..."); ok {
			return pkg == parent || strings.HasPrefix(pkg, parent+"/")
		}
		return pkg == p
	})
}

// allowed finds what a package may import.
func allowed(pkg string) (patterns []string, product, known bool) {
	if p, ok := layers[pkg]; ok {
		return p, true, true
	}
	for name, p := range forTests {
		if covers([]string{name}, pkg) {
			return p, false, true
		}
	}
	return nil, false, false
}

// Imports go one way, and siblings never import each other.
func TestImports(t *testing.T) {
	all := list(t, "./...")
	if len(all) < 10 {
		t.Fatalf("only %d packages were found", len(all))
	}
	for _, p := range all {
		pkg, _ := ours(p.ImportPath)
		patterns, product, known := allowed(pkg)
		if !known {
			t.Errorf("%s has no place in the layers: add it to the tables of this test", pkg)
			continue
		}
		for _, i := range p.Imports {
			dep, mine := ours(i)
			if !mine || covers(anywhere, dep) || covers(patterns, dep) {
				continue
			}
			t.Errorf("%s imports %s; it may import only %s", pkg, dep, strings.Join(append(slices.Clone(anywhere), patterns...), ", "))
		}
		for _, i := range p.Imports {
			dep, mine := ours(i)
			if _, depProduct, _ := allowed(dep); mine && product && !depProduct {
				t.Errorf("%s is part of the product and imports %s, which is for tests", pkg, dep)
			}
		}
	}
}

// A dependency has one owner, behind whose types it can be replaced.
func TestOwners(t *testing.T) {
	for _, p := range list(t, "./...") {
		pkg, _ := ours(p.ImportPath)
		for _, i := range p.Imports {
			for dep, by := range owners {
				if (i == dep || strings.HasPrefix(i, dep+"/")) && !covers(by, pkg) {
					t.Errorf("%s imports %s; only %s may", pkg, i, strings.Join(by, ", "))
				}
			}
		}
	}
}

// The binary has no test code in it, and nothing that needs C.
func TestBinary(t *testing.T) {
	for _, p := range list(t, "-deps", "./cmd/holdfast") {
		switch p.ImportPath {
		case "testing", "runtime/cgo", "C":
			t.Errorf("the binary contains the package %s", p.ImportPath)
		}
	}
}

// The tables themselves must not rot: a name in them that no package has would allow what nobody has looked at.
func TestTables(t *testing.T) {
	found := make(map[string]bool)
	for _, p := range list(t, "./...") {
		pkg, _ := ours(p.ImportPath)
		found[pkg] = true
	}
	for pkg := range layers {
		if !found[pkg] {
			t.Errorf("the tables name the package %s, which does not exist", pkg)
		}
	}
}

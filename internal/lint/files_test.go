package lint

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxFileLines     = 800
	maxFunctionLines = 100
)

// long lists files, and functions as file:name, that are longer than the limits, each with the reason.
var long = map[string]string{}

// files returns the tree's files as git sees them, those not yet added included.
func files(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var all []string
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if st, err := os.Lstat(filepath.Join(root(t), name)); err == nil && st.Mode().IsRegular() { // not one that was just removed
			all = append(all, name)
		}
	}
	if len(all) < 50 {
		t.Fatalf("only %d files were found", len(all))
	}
	return all
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goFiles calls f with each Go file that people write.
func goFiles(t *testing.T, f func(name string, src []byte, fset *token.FileSet, file *ast.File)) {
	t.Helper()
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		fset := token.NewFileSet()
		src := read(t, name)
		file, err := parser.ParseFile(fset, name, src, parser.ParseComments)
		if err != nil {
			t.Error(err)
			continue
		}
		if !ast.IsGenerated(file) {
			f(name, src, fset, file)
		}
	}
}

// Files and functions are short, or there is a reason.
func TestLength(t *testing.T) {
	used := make(map[string]bool)
	check := func(what string, lines, limit int) {
		if lines <= limit {
			return
		}
		used[what] = true
		if long[what] == "" {
			t.Errorf("%s has %d lines, above %d: split it, or give a reason in this test", what, lines, limit)
		}
	}
	goFiles(t, func(name string, src []byte, fset *token.FileSet, file *ast.File) {
		check(name, bytes.Count(src, []byte("\n")), maxFileLines)
		if strings.HasSuffix(name, "_test.go") {
			return // tables of cases are read line by line
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				check(name+":"+f.Name.Name, fset.Position(f.End()).Line-fset.Position(f.Pos()).Line+1, maxFunctionLines)
			}
		}
	})
	for what := range long {
		if !used[what] {
			t.Errorf("%s is no longer too long: take it off the list", what)
		}
	}
}

// Every package says what it is for.
func TestPackageComments(t *testing.T) {
	documented, seen := make(map[string]bool), make(map[string]string)
	goFiles(t, func(name string, _ []byte, _ *token.FileSet, file *ast.File) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		dir := filepath.Dir(name)
		seen[dir] = file.Name.Name
		if c := file.Doc.Text(); strings.HasPrefix(c, "Package "+file.Name.Name+" ") || file.Name.Name == "main" && strings.HasPrefix(c, "Command ") {
			documented[dir] = true
		}
	})
	for dir, name := range seen {
		if !documented[dir] && !generated(t, dir) {
			t.Errorf("%s: no file begins with a comment \"// Package %s …\" (or \"// Command …\" for a main)", dir, name)
		}
	}
}

func generated(t *testing.T, dir string) bool {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root(t), dir, "*.pb.go"))
	return err == nil && len(names) > 0
}

// Only the command line reads the environment (inside the product).
func TestEnvironment(t *testing.T) {
	reads := regexp.MustCompile(`\bos\.(Getenv|LookupEnv|Environ)\(`)
	for _, p := range list(t, "./...") {
		pkg, _ := ours(p.ImportPath)
		if _, product, _ := allowed(pkg); !product || pkg == "internal/cli" {
			continue
		}
		names, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, "_test.go") || !reads.Match(src) {
				continue
			}
			if pkg == "inference/fetch" { // hands it on to the package client, unread
				continue
			}
			t.Errorf("%s reads the environment: let internal/cli do it and take an argument", name)
		}
	}
}

// The tree speaks of the product alone: no path of a developer's machine, no host of a package registry (its client
// knows it), no mark of unfinished work, no skipped test, no sleep in the product. Patterns are put together here so that this file has none.
func TestContent(t *testing.T) {
	join := func(parts ...string) string { return regexp.QuoteMeta(strings.Join(parts, "")) }
	rules := []struct {
		what    string
		pattern *regexp.Regexp
		applies func(name string) bool
	}{
		{"a host of a package registry", regexp.MustCompile(`(?i)` + strings.Join([]string{
			join("py", "pi.org"), join("python", "hosted.org"), join("registry.", "npmjs"), join("registry.", "yarnpkg"), join("crates", ".io"),
			join("proxy.", "golang.org"), join("sum.", "golang.org"), join("maven", ".org"), join("deb.", "debian.org"),
		}, "|")), everyFile},
		{"a path of a developer's machine", regexp.MustCompile(strings.Join([]string{
			`(^|[\s"'=(:` + "`" + `])/` + `(work|root|home/\w+|Users/\w+)/`, join("/tmp/", "brief"),
		}, "|")), everyFile},
		{"a mark of unfinished work", regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME"}, "|") + `)\b`), everyFile},
		{"a skipped test", regexp.MustCompile(`\b[tb]\.` + `Skip(f|Now)?\(`), everyFile},
		{"a sleep", regexp.MustCompile(`\btime\.` + `Sleep\(`), productFile},
	}
	for _, name := range files(t) {
		src := read(t, name)
		if !utf8.Valid(src) || bytes.IndexByte(src, 0) >= 0 || strings.HasSuffix(name, "go.sum") {
			continue
		}
		for n, line := range bytes.Split(src, []byte("\n")) {
			for _, r := range rules {
				if r.applies(name) && r.pattern.Match(line) {
					t.Errorf("%s:%d has %s: %s", name, n+1, r.what, bytes.TrimSpace(line))
				}
			}
		}
	}
}

func everyFile(string) bool { return true }

// productFile reports whether a file is compiled into the binary.
func productFile(name string) bool {
	_, product, _ := allowed(filepath.ToSlash(filepath.Dir(name)))
	return product && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}

package inference_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-ai/holdfast/inference"
)

const sum = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

func TestParseManifest(t *testing.T) {
	const head = `{"name": "m", "version": "1", "task": "generate", "runtime": "wasm", `
	file := func(path string) string {
		return head + `"files": [{"path": "` + path + `", "size": 1, "sha256": "` + sum + `"}]`
	}
	for _, tc := range []struct {
		name, text string
		want       string // part of the error; "" is none
	}{
		{"good", file("a/b.gguf") + `}`, ""},
		{"not json", `{`, "unexpected EOF"},
		{"twice", file("a") + `} {}`, "follows"},
		{"unknown field", head + `"signature": ""}`, `unknown field "signature"`},
		{"name leaves the folder", `{"name": "../m", "task": "generate", "runtime": "wasm"}`, "the name must be"},
		{"upper case name", `{"name": "M", "task": "generate", "runtime": "wasm"}`, "the name must be"},
		{"hidden name", `{"name": ".cache", "task": "generate", "runtime": "wasm"}`, "the name must be"},
		{"no runtime", `{"name": "m", "task": "generate"}`, "no runtime"},
		{"unknown task", `{"name": "m", "task": "sing", "runtime": "wasm"}`, "task"},
		{"file leaves the folder", file("../weights") + `}`, "not relative"},
		{"absolute file", file("/weights") + `}`, "not relative"},
		{"file of windows", file(`c:\\weights`) + `}`, "not relative"},
		{"unclean file", file("a//b") + `}`, "not relative"},
		{"hidden file", file(".lock") + `}`, "not relative"},
		{"unfinished file", file("a.part") + `}`, "not relative"},
		{"no size", head + `"files": [{"path": "a", "sha256": "` + sum + `"}]}`, "size 0"},
		{"short digest", head + `"files": [{"path": "a", "size": 1, "sha256": "b179"}]}`, "SHA-256"},
		{"upper digest", head + `"files": [{"path": "a", "size": 1, "sha256": "` + strings.ToUpper(sum) + `"}]}`, "SHA-256"},
		{"plain http", file("a") + `, "sources": [{"type": "https", "url": "http://h/a"}]}`, "https://"},
		{"package without a path", file("a") + `, "sources": [{"type": "pypi", "package": "p", "version": "1"}]}`, "paths"},
		{"option for a package", file("a") + `, "sources": [{"type": "pypi", "package": "--index-url", "version": "1"}]}`, "plain name"},
		{"package with a mark", file("a") + `, "sources": [{"type": "pypi", "package": "p", "version": "1;x"}]}`, "plain name"},
		{"unknown source", file("a") + `, "sources": [{"type": "ftp"}]}`, "ftp"},
	} {
		_, err := inference.ParseManifest([]byte(tc.text))
		if tc.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		if !errors.Is(err, inference.ErrInvalidManifest) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestDigest(t *testing.T) {
	base := func() *inference.Manifest {
		return &inference.Manifest{
			Name: "m", Version: "1", Task: "generate", Runtime: "wasm", Family: "f", Context: 10,
			Files: []inference.File{{Path: "a", Size: 1, SHA256: sum}},
		}
	}
	want := base().Digest()
	if !strings.HasPrefix(want, "sha256:") || len(want) != len("sha256:")+64 {
		t.Errorf("digest %q", want)
	}
	for name, change := range map[string]func(m *inference.Manifest){
		"family": func(m *inference.Manifest) { m.Family = "g" }, "runtime": func(m *inference.Manifest) { m.Runtime = "onnx" },
		"context": func(m *inference.Manifest) { m.Context = 11 }, "version": func(m *inference.Manifest) { m.Version = "2" },
		"file": func(m *inference.Manifest) { m.Files[0].SHA256 = strings.Repeat("0", 64) },
	} {
		m := base()
		change(m)
		if m.Digest() == want {
			t.Errorf("another %s has the same digest", name)
		}
	}
	m := base()
	m.Title, m.License, m.Defaults.Temperature = "A title", "MIT", 1
	m.Sources = []inference.Source{{Type: "https", URL: "https://elsewhere"}}
	if m.Digest() != want {
		t.Error("title, licence, defaults or sources change the digest; turns in flight could not be continued")
	}
}

package models

import (
	"errors"
	"testing"
	"testing/fstest"

	"github.com/holdfast-ai/holdfast/inference"
)

func TestManifests(t *testing.T) {
	all, err := Manifests()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, m := range all {
		found = found || m.Name == Default
		if m.License == "" || m.Title == "" || len(m.Files) == 0 || len(m.Sources) == 0 {
			t.Errorf("%s lacks a licence, title, files or sources", m.Name)
		}
	}
	if !found {
		t.Errorf("the default model %q is not among the manifests", Default)
	}
}

// A plan names the digest; when it changes by accident, turns that a crash interrupted cannot be continued.
func TestDefaultDigest(t *testing.T) {
	all, err := Manifests()
	if err != nil {
		t.Fatal(err)
	}
	const want = "sha256:2bbba1d029243db062af64db0d7d9c3c67775ed3195d15f3714612a36caf4d16"
	for _, m := range all {
		if m.Name == Default && m.Digest() != want {
			t.Errorf("the digest of %s is %s, want %s", m.Name, m.Digest(), want)
		}
	}
}

func TestParse(t *testing.T) {
	for name, fsys := range map[string]fstest.MapFS{
		"broken":     {"m.json": {Data: []byte("{")}},
		"other name": {"n.json": {Data: []byte(`{"name": "m", "task": "generate", "runtime": "echo"}`)}},
	} {
		if _, err := parse(fsys); !errors.Is(err, inference.ErrInvalidManifest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

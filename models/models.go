// Package models is the catalog's pinned entries: what each model's files are, to the byte, under which licence, and
// where they can be had. It holds no weights.
//
// Manifests is the package's whole surface; a caller hands its result to inference.NewCatalog, or finds one by name:
//
//	all, err := models.Manifests()
//
// A new model is a new JSON file in this folder. Its digests are those of the files as their sources give them, which
// `holdfast model pull` proves.
package models

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/holdfast-ai/holdfast/inference"
)

// Default is the model of those who name none.
const Default = "smollm2-135m-instruct"

//go:embed *.json
var files embed.FS

// Manifests returns all entries, by name. The caller owns them.
func Manifests() ([]*inference.Manifest, error) { return parse(files) }

func parse(fsys fs.FS) ([]*inference.Manifest, error) {
	names, err := fs.Glob(fsys, "*.json")
	if err != nil {
		return nil, fmt.Errorf("models: list the manifests: %w", err)
	}
	all := make([]*inference.Manifest, 0, len(names))
	for _, name := range names {
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("models: %s: %w", name, err)
		}
		m, err := inference.ParseManifest(data)
		if err != nil {
			return nil, fmt.Errorf("models: %s: %w", name, err)
		}
		if want := strings.TrimSuffix(path.Base(name), ".json"); m.Name != want {
			return nil, fmt.Errorf("models: %s: %w: its name is %q, not %q as the file's", name, inference.ErrInvalidManifest, m.Name, want)
		}
		all = append(all, m)
	}
	return all, nil
}

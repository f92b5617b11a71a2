package inference

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// ErrInvalidManifest says that a manifest cannot describe a model.
var ErrInvalidManifest = errors.New("invalid model manifest")

// ParseManifest reads a manifest from JSON and validates it. Fields that it does not know are an error: a manifest
// written for a later version may ask for something that this one would silently not do.
func ParseManifest(data []byte) (*Manifest, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var m Manifest
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows the JSON object", ErrInvalidManifest)
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	return &m, nil
}

// Validate finds what would make the manifest unusable or dangerous, such as a file outside the model's folder.
func (m *Manifest) Validate() error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w %q: %s", ErrInvalidManifest, m.Name, fmt.Sprintf(format, args...))
	}
	if !validModelName(m.Name) {
		return invalid("the name must be 1 to 128 of a-z, 0-9, '.', '_', '-', and begin with a letter or digit")
	}
	if m.Runtime == "" {
		return invalid("no runtime")
	}
	if m.Task != "generate" {
		return invalid("task %q is not known; known is \"generate\"", m.Task)
	}
	seen := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		if !validFilePath(f.Path) {
			return invalid("file path %q is not relative, clean and slash-separated", f.Path)
		}
		if seen[f.Path] {
			return invalid("file %q is listed twice", f.Path)
		}
		seen[f.Path] = true
		if f.Size <= 0 {
			return invalid("file %q has size %d", f.Path, f.Size)
		}
		if sum, err := hex.DecodeString(f.SHA256); err != nil || len(sum) != sha256.Size || strings.ToLower(f.SHA256) != f.SHA256 {
			return invalid("file %q has no lower-case SHA-256", f.Path)
		}
	}
	for i, s := range m.Sources {
		if err := s.validate(seen); err != nil {
			return invalid("source %d: %v", i+1, err)
		}
	}
	return nil
}

func (s Source) validate(files map[string]bool) error {
	switch s.Type {
	case "pypi":
		if s.Package == "" || s.Version == "" {
			return fmt.Errorf("%q needs a package and its version", s.Type)
		}
		if strings.HasPrefix(s.Package, "-") || strings.ContainsAny(s.Package+s.Version, " \t\n=<>;@") {
			return fmt.Errorf("package %q or version %q is not a plain name", s.Package, s.Version)
		}
		for file := range files {
			if s.Paths[file] == "" {
				return fmt.Errorf("paths does not say where %q is in the package", file)
			}
		}
	case "https":
		if !strings.HasPrefix(s.URL, "https://") {
			return fmt.Errorf("url %q does not begin with https://", s.URL)
		}
		if len(files) != 1 {
			return fmt.Errorf("one url cannot give %d files", len(files))
		}
	default:
		return fmt.Errorf("type %q is not known", s.Type)
	}
	return nil
}

// Digest identifies what the model computes: its files, and how they are run. It does not cover titles, defaults and
// sources, so that moving a download does not change the model. A Plan is pinned to it.
func (m *Manifest) Digest() string {
	h := sha256.New()
	fmt.Fprintf(h, "holdfast model 1\n%q %q %q %q %q %d\n", m.Name, m.Version, m.Task, m.Family, m.Runtime, m.Context)
	for _, f := range m.Files {
		fmt.Fprintf(h, "%q %d %s\n", f.Path, f.Size, f.SHA256)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Bytes is the size of the model's files together.
func (m *Manifest) Bytes() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

func validModelName(name string) bool {
	if name == "" || len(name) > 128 {
		return false
	}
	for i, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
		case i > 0 && (r == '.' || r == '_' || r == '-'):
		default:
			return false
		}
	}
	return true
}

// validFilePath refuses what could name a file outside the model's folder, on any operating system.
func validFilePath(p string) bool {
	if p == "" || len(p) > 512 || path.IsAbs(p) || path.Clean(p) != p || strings.ContainsAny(p, "\\:\x00") {
		return false
	}
	for part := range strings.SplitSeq(p, "/") {
		// A dot in front is for what is not part of a model: locks and unfinished downloads.
		if strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".part") {
			return false
		}
	}
	return true
}

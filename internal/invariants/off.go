//go:build !invariants && !race

// Package invariants switches checks that are too costly for production. They are on under -race and under the
// build tag "invariants".
package invariants

// Enabled reports whether costly checks run.
const Enabled = false

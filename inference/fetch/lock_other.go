//go:build !unix

package fetch

import (
	"errors"
	"os"
)

// tryLock takes the lock of name, or reports that another holds it. Without advisory locks the file's existence is the
// lock; one that a dead process has left must be deleted by hand.
func tryLock(name string) (unlock func(), held bool, err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	return func() { _ = f.Close(); _ = os.Remove(name) }, false, nil
}

// ignoreUnsupported drops every error: these systems cannot sync a folder.
func ignoreUnsupported(error) error { return nil }

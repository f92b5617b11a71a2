package actors

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/storage"
)

// MaxNameBytes bounds each part of an ID.
const MaxNameBytes = 128

// ID is the address of an object.
type ID struct {
	Namespace, Kind, Name string
}

// String returns "namespace/kind/name".
func (id ID) String() string { return id.Namespace + "/" + id.Kind + "/" + id.Name }

func (id ID) address() storage.Address { return storage.Address(id) }

// ParseID reads "namespace/kind/name". Its errors are *proto.Error with code "invalid_name".
func ParseID(s string) (ID, error) {
	parts := strings.SplitN(s, "/", 4)
	if len(parts) != 3 {
		return ID{}, invalidName("an address has three parts, this one has %d slashes", strings.Count(s, "/"))
	}
	id := ID{Namespace: parts[0], Kind: parts[1], Name: parts[2]}
	if err := id.Validate(); err != nil {
		return ID{}, err
	}
	return id, nil
}

// Validate checks each part: 1 to MaxNameBytes bytes of UTF-8 without control characters and slashes.
func (id ID) Validate() error {
	for _, p := range [...]struct{ what, s string }{
		{"namespace", id.Namespace}, {"kind", id.Kind}, {"name", id.Name},
	} {
		switch {
		case p.s == "":
			return invalidName("the %s is empty", p.what)
		case len(p.s) > MaxNameBytes:
			return invalidName("the %s has %d bytes, more than %d", p.what, len(p.s), MaxNameBytes)
		case !utf8.ValidString(p.s):
			return invalidName("the %s is not valid UTF-8", p.what)
		case strings.ContainsRune(p.s, '/'):
			return invalidName("the %s contains a slash", p.what)
		case strings.ContainsFunc(p.s, unicode.IsControl):
			return invalidName("the %s contains a control character", p.what)
		}
	}
	return nil
}

func invalidName(format string, args ...any) error {
	e := proto.Errorf(proto.CodeInvalidName, format, args...)
	e.Hint = "an address is namespace/kind/name, each 1 to 128 bytes of UTF-8 without control characters and slashes"
	return e
}

package actors_test

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/proto"
)

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"default/session/demo", "a/b", "a/b/c/d", "//", "a/b/ö", "a/b/\x00", "a/b/\xff", "a/b/\u0085"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := actors.ParseID(s)
		if err != nil {
			var e *proto.Error
			if !errors.As(err, &e) || e.Code != proto.CodeInvalidName || e.Hint == "" {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if id.String() != s {
			t.Errorf("%q became %q", s, id)
		}
		for _, part := range []string{id.Namespace, id.Kind, id.Name} {
			if part == "" || len(part) > actors.MaxNameBytes || !utf8.ValidString(part) || strings.ContainsFunc(part, unicode.IsControl) {
				t.Errorf("%q was taken in %q", part, s)
			}
		}
	})
}

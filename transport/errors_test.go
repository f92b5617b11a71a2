package transport

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// declaredCodes reads the constants of type Code from the source of package proto.
func declaredCodes(t *testing.T) []proto.Code {
	file, err := parser.ParseFile(token.NewFileSet(), "../proto/proto.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []proto.Code
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Code" {
			for _, x := range v.Values {
				s, err := strconv.Unquote(x.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				codes = append(codes, proto.Code(s))
			}
		}
		return true
	})
	if len(codes) < 20 {
		t.Fatalf("found %d codes only", len(codes))
	}
	return codes
}

func TestEveryCodeHasOneClass(t *testing.T) {
	rows := map[proto.Code]int{}
	for _, c := range Classes() {
		rows[c.Code]++
		if c.Hint == "" || c.HTTP < 400 || c.Close < 1000 {
			t.Errorf("%s: incomplete %+v", c.Code, c)
		}
		// 1009 is the standard's code for its reason; clients know that it is final.
		if final := c.Close >= 4000 || c.Close == 1009; final == c.Retryable {
			t.Errorf("%s: close code %d does not agree with retryable %v", c.Code, c.Close, c.Retryable)
		}
		if c.RetryAfter > 0 && !c.Retryable {
			t.Errorf("%s: says when to retry what cannot be", c.Code)
		}
	}
	codes := declaredCodes(t)
	for _, code := range codes {
		if rows[code] != 1 {
			t.Errorf("%s has %d rows", code, rows[code])
		}
		delete(rows, code)
	}
	for code := range rows {
		t.Errorf("%s is not a code of package proto", code)
	}
}

func TestWireError(t *testing.T) {
	present := &wirepb.Cursor{Offset: 9}
	w := wireError(&proto.Error{Code: proto.CodeGone, Message: "m", FirstHeld: 4, Present: present, Err: errors.New("cause")})
	if w.Message != "m" || w.Hint == "" || w.Retryable || w.FirstHeld != 4 || w.Present.Offset != 9 || strings.Contains(w.String(), "cause") {
		t.Errorf("gone: %v", w)
	}
	w = wireError(&proto.Error{Code: proto.CodeOverloaded, Hint: "own", RetryAfter: 7 * time.Second})
	if !w.Retryable || w.RetryAfterMs != 7000 || w.Hint != "own" {
		t.Errorf("overloaded: %v", w)
	}
	if w := wireError(&proto.Error{Code: "made up"}); w.Code != "internal" {
		t.Errorf("unknown code: %v", w)
	}
	if e := asError(fmt.Errorf("at: %w", proto.Errorf(proto.CodeGone, "g"))); e.Code != proto.CodeGone {
		t.Errorf("wrapped: %v", e)
	}
}

// errorTable is the table of docs/PROTOCOL.md.
func errorTable() string {
	var b strings.Builder
	b.WriteString("| code | retryable | retry after | HTTP | close | hint |\n|---|---|---|---|---|---|\n")
	for _, c := range Classes() {
		retryable, after := "no", ""
		if c.Retryable {
			retryable = "yes"
		}
		if c.RetryAfter > 0 {
			after = c.RetryAfter.String()
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %d | %d | %s |\n", c.Code, retryable, after, c.HTTP, c.Close, c.Hint)
	}
	return b.String()
}

func TestDocumentedErrors(t *testing.T) {
	doc, err := os.ReadFile("../docs/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), "\n\n"+errorTable()+"\n") {
		t.Errorf("docs/PROTOCOL.md does not show the table of errors.go; it should have:\n%s", errorTable())
	}
}

// TestDocumentedFrames: each body of Frame and Entry, and each field of the messages, is in the document by the name
// that JSON gives it.
func TestDocumentedFrames(t *testing.T) {
	doc, err := os.ReadFile("../docs/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	messages := (&wirepb.Frame{}).ProtoReflect().Descriptor().ParentFile().Messages()
	for i := range messages.Len() {
		fields := messages.Get(i).Fields()
		for j := range fields.Len() {
			if name := fields.Get(j).JSONName(); !strings.Contains(string(doc), "`"+name+"`") {
				t.Errorf("%s is not in docs/PROTOCOL.md as `%s`", fields.Get(j).FullName(), name)
			}
		}
	}
	for _, text := range []string{ProtocolBinary, ProtocolJSON, "/v1/ws", "/healthz", "/readyz"} {
		if !strings.Contains(string(doc), text) {
			t.Errorf("docs/PROTOCOL.md does not mention %s", text)
		}
	}
}

// Package proto holds what every layer must agree on: the wire messages (wirepb), the records on disk (statepb),
// and the few Go types that cross from transport to actors without either importing the other.
package proto

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Principal is who asks. It is on every frame and request.
type Principal struct {
	Namespace string
	User      string
	Roles     []string
}

// Code names a refusal that a client can act on. Package transport maps each to an HTTP status, a close code,
// whether a retry can help, and a hint; docs/PROTOCOL.md lists them.
type Code string

// Codes of client-visible errors.
const (
	CodeInvalidFrame       Code = "invalid_frame"       // not protobuf or JSON of holdfast.v1, or a frame only servers send
	CodeUnsupportedVersion Code = "unsupported_version" // Hello.version is not spoken here
	CodeInvalidArgument    Code = "invalid_argument"    // a field is missing, too long or out of range
	CodeInvalidName        Code = "invalid_name"        // namespace, kind or object name
	CodeTooLarge           Code = "too_large"
	CodeUnauthenticated    Code = "unauthenticated"
	CodeForbidden          Code = "forbidden"
	CodeNotFound           Code = "not_found"
	CodeUnknownKind        Code = "unknown_kind"
	CodeConflict           Code = "conflict" // message id reused with another body
	CodeGone               Code = "gone"     // cursor below retention, or of another incarnation or generation
	CodeOverloaded         Code = "overloaded"
	CodeDraining           Code = "draining"
	CodeUnavailable        Code = "unavailable" // storage is read-only or the object is being moved
	CodeQuarantined        Code = "quarantined" // damaged records; see holdfast check
	CodeModelNotFound      Code = "model_not_found"
	CodeModelUnavailable   Code = "model_unavailable" // damaged, wrong digest, does not fit
	CodeContextOverflow    Code = "context_overflow"
	CodeModelFailed        Code = "model_failed"
	CodeInterrupted        Code = "interrupted" // the server restarted and this model cannot continue an answer
	CodeAttemptsExhausted  Code = "attempts_exhausted"
	CodeSlowConsumer       Code = "slow_consumer"
	CodeIdleTimeout        Code = "idle_timeout"
	CodeInternal           Code = "internal"
)

// Error is a coded, client-visible refusal. Message says what was refused and why; Hint says what to do.
type Error struct {
	Code       Code
	Message    string
	Hint       string         // empty: the table's hint for Code
	RetryAfter time.Duration  // 0: the table's default for Code
	FirstHeld  uint64         // with CodeGone
	Present    *wirepb.Cursor // with CodeGone
	Err        error          // cause, for logs; never sent to a client
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error. A %w operand becomes its cause and is not part of Message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Item is one thing that an attached object says: exactly one field group is set.
type Item struct {
	// Offset and Entry: a durable frame, Entry being a marshaled wirepb.Entry. The slice is shared by all
	// readers and must not be changed; it stays valid after the next call.
	Offset uint64
	Entry  []byte
	// Status: an ephemeral frame. Shared; must not be changed.
	Status *wirepb.Status
}

// Cursor is an attachment of one reader to one object. It is pulled: it costs its own size however far behind
// its reader is, and it never delays the object (invariant 6). Not safe for concurrent use.
type Cursor interface {
	// Attached describes where the cursor started.
	Attached() *wirepb.Attached
	// Next appends to dst what is available now, durable items in offset order without gap or repeat, and
	// returns it; it stops after the item that passes maxBytes. It never waits for the future: an empty
	// result means that the reader is at the watermark and that wake (see Attach) will be called when
	// there is more. It may read from disk. Its errors are *Error; after one the cursor is dead.
	Next(ctx context.Context, dst []Item, maxBytes int) ([]Item, error)
	// Close releases the cursor; wake is not called after it returns.
	Close()
}

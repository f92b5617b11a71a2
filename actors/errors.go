package actors

import (
	"errors"
	"fmt"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/storage"
)

// ErrStopped is the cause of the context of effects whose activation has ended.
var ErrStopped = errors.New("activation has ended")

var (
	errIdle    = errors.New("idle")
	errClosing = errors.New("host is closing")
)

// isQuiet reports whether an activation that ends for this reason needs no successor from us.
func isQuiet(cause error) bool {
	return errors.Is(cause, errIdle) || errors.Is(cause, errClosing) || errors.Is(cause, storage.ErrFenced)
}

// panicError is a panic of an object or effect.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// coded turns any error into one that a client may see. What it was stays in Err, for the logs.
func coded(err error) *proto.Error {
	var e *proto.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, storage.ErrCorrupt):
		return &proto.Error{Code: proto.CodeQuarantined, Message: "a record of this object is damaged", Err: err}
	case errors.Is(err, storage.ErrFenced):
		return &proto.Error{Code: proto.CodeUnavailable, Message: "the object has a newer owner", Err: err}
	case errors.Is(err, storage.ErrReadOnly):
		return &proto.Error{Code: proto.CodeUnavailable, Message: "storage is read-only", Err: err}
	case errors.Is(err, errClosing), errors.Is(err, storage.ErrClosed):
		return &proto.Error{Code: proto.CodeDraining, Message: "the server is shutting down", Err: err}
	}
	return &proto.Error{Code: proto.CodeInternal, Message: "the object failed", Err: err}
}

// commitFailure is what a client is told whose answer waited for a commit that failed: it may have happened or not.
func commitFailure(err error) error {
	e := coded(err)
	if e.Code == proto.CodeInternal {
		e = &proto.Error{Code: proto.CodeUnavailable, Message: "the change could not be made durable", Err: err}
	}
	e.Hint = "send it again with the same message id"
	return e
}

// wireError is the body of a refusal. The transport fills in what its table knows of the code.
func wireError(err error, messageID string) *wirepb.Frame_Error {
	e := coded(err)
	return &wirepb.Frame_Error{Error: &wirepb.Error{
		Code:         string(e.Code),
		Message:      e.Message,
		Hint:         e.Hint,
		RetryAfterMs: uint32(e.RetryAfter.Milliseconds()),
		MessageId:    messageID,
		FirstHeld:    e.FirstHeld,
		Present:      e.Present,
	}}
}

func isNotFound(err error) bool { return errors.Is(err, storage.ErrNotFound) }

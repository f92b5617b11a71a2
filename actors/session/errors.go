package session

import (
	"errors"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// turnErrors maps what runners say to what clients are told. What exactly happened is in the log.
var turnErrors = [...]struct {
	is        error
	code      proto.Code
	message   string
	hint      string
	retryable bool
}{
	{inference.ErrModelNotFound, proto.CodeModelNotFound, "there is no such model", "name a model that holdfast model list shows", false},
	{inference.ErrModelUnavailable, proto.CodeModelUnavailable, "the model cannot be used", "ask the operator to run holdfast model verify", false},
	{inference.ErrContextOverflow, proto.CodeContextOverflow, "the message does not fit the model's context", "shorten it or start another session", false},
	{inference.ErrInvalidRequest, proto.CodeInvalidArgument, "the model does not take these options", "change the options", false},
	{inference.ErrOverloaded, proto.CodeOverloaded, "too many generations wait for the model", "submit again later with a new message id", true},
	{errInterrupted, proto.CodeInterrupted, "the server restarted in mid-answer and this model cannot go on", "submit again with a new message id", true},
	{errExhausted, proto.CodeAttemptsExhausted, "the turn was interrupted too often", "submit again with a new message id; if it goes on, report it", false},
}

var (
	errInterrupted = errors.New("the answer was interrupted and cannot be continued")
	errExhausted   = errors.New("too many attempts")
)

// turnError is the error of a failed turn's terminal entry.
func turnError(err error) *wirepb.Error {
	for _, t := range turnErrors {
		if errors.Is(err, t.is) {
			return &wirepb.Error{Code: string(t.code), Message: t.message, Hint: t.hint, Retryable: t.retryable}
		}
	}
	var e *proto.Error
	if errors.As(err, &e) {
		return &wirepb.Error{Code: string(e.Code), Message: e.Message, Hint: e.Hint}
	}
	return &wirepb.Error{
		Code: string(proto.CodeModelFailed), Message: "the model failed", Hint: "submit again with a new message id", Retryable: true,
	}
}

// interrupted reports whether an effect ended for a reason that is not its turn's: the activation ends, or the model
// was unloaded. The turn goes on in the next activation.
func interrupted(out actors.Output) bool {
	return out.Err != nil && (errors.Is(out.Err, actors.ErrStopped) || errors.Is(out.Err, inference.ErrClosed))
}

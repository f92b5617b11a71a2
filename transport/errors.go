package transport

import (
	"errors"
	"net/http"
	"time"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport/ws"
)

// Class is what a client must know of a code.
type Class struct {
	Code proto.Code
	// Retryable: the same request, sent again later, may succeed.
	Retryable bool
	// HTTP is the status of a refusal before or without an upgrade.
	HTTP int
	// Close is the close code of a connection that ends for this reason. 4000 and above say that connecting again
	// cannot help.
	Close int
	// RetryAfter is when to try again, unless the refusal itself says.
	RetryAfter time.Duration
	// Hint says what to do, unless the refusal itself says.
	Hint string
}

// classes is the one table of client-visible errors. docs/PROTOCOL.md shows it.
var classes = [...]Class{
	{proto.CodeInvalidFrame, false, http.StatusBadRequest, 4400, 0, "send holdfast.v1 frames that a client may send, in the encoding of the negotiated subprotocol"},
	{proto.CodeUnsupportedVersion, false, http.StatusUpgradeRequired, 4406, 0, "begin with Hello and a version that this server speaks"},
	{proto.CodeInvalidArgument, false, http.StatusBadRequest, 4400, 0, "correct the field that the message names"},
	{proto.CodeInvalidName, false, http.StatusBadRequest, 4400, 0, "use an address namespace/kind/name without control characters"},
	{proto.CodeTooLarge, false, http.StatusRequestEntityTooLarge, ws.CloseTooBig, 0, "keep frames within Welcome.max_frame_bytes"},
	{proto.CodeUnauthenticated, false, http.StatusUnauthorized, 4401, 0, "send valid credentials"},
	{proto.CodeForbidden, false, http.StatusForbidden, 4403, 0, "ask for access, or use an object of your own namespace"},
	{proto.CodeNotFound, false, http.StatusNotFound, 4404, 0, "check the address"},
	{proto.CodeUnknownKind, false, http.StatusNotFound, 4404, 0, "use a kind that this server was built with"},
	{proto.CodeConflict, false, http.StatusConflict, 4409, 0, "use a new message id for a new message"},
	{proto.CodeGone, false, http.StatusGone, 4410, 0, "attach again at present, or after first_held - 1"},
	{proto.CodeOverloaded, true, http.StatusServiceUnavailable, ws.CloseTryAgain, time.Second, "try again later, with fewer requests at once"},
	{proto.CodeDraining, true, http.StatusServiceUnavailable, ws.CloseRestart, time.Second, "connect again; nothing durable is lost"},
	{proto.CodeUnavailable, true, http.StatusServiceUnavailable, ws.CloseTryAgain, 2 * time.Second, "try again later"},
	{proto.CodeQuarantined, false, http.StatusInternalServerError, 4500, 0, "ask the operator to run holdfast check"},
	{proto.CodeModelNotFound, false, http.StatusNotFound, 4404, 0, "name a model that holdfast model list shows"},
	{proto.CodeModelUnavailable, false, http.StatusServiceUnavailable, 4503, 0, "ask the operator to run holdfast model verify"},
	{proto.CodeContextOverflow, false, http.StatusRequestEntityTooLarge, 4413, 0, "shorten the message or start another session"},
	{proto.CodeModelFailed, false, http.StatusInternalServerError, 4500, 0, "submit again with a new message id"},
	{proto.CodeInterrupted, false, http.StatusInternalServerError, 4500, 0, "submit again with a new message id; the part that was written is kept"},
	{proto.CodeAttemptsExhausted, false, http.StatusInternalServerError, 4500, 0, "submit again with a new message id; if it goes on, report it"},
	{proto.CodeSlowConsumer, true, http.StatusRequestTimeout, ws.CloseTryAgain, time.Second, "connect again and resume after the last offset seen"},
	{proto.CodeIdleTimeout, true, http.StatusRequestTimeout, ws.CloseTimeout, 0, "connect again and resume; answer pings"},
	{proto.CodeInternal, true, http.StatusInternalServerError, ws.CloseInternal, 5 * time.Second, "try again; if it goes on, report it with the time"},
}

// Lookup returns the class of a code; an unknown code is of the class of "internal".
func Lookup(code proto.Code) Class {
	for _, c := range classes {
		if c.Code == code {
			return c
		}
	}
	return Lookup(proto.CodeInternal)
}

// Classes returns the whole table.
func Classes() []Class { return append([]Class(nil), classes[:]...) }

// asError finds the coded error in err. Anything else is "internal", and what it says stays in the logs.
func asError(err error) *proto.Error {
	var e *proto.Error
	if errors.As(err, &e) {
		return e
	}
	return &proto.Error{Code: proto.CodeInternal, Message: "the server failed to serve this request", Err: err}
}

// wireError is what a client is told of e.
func wireError(e *proto.Error) *wirepb.Error {
	w := &wirepb.Error{
		Code:      string(e.Code),
		Message:   e.Message,
		Hint:      e.Hint,
		FirstHeld: e.FirstHeld,
		Present:   e.Present,
	}
	w.RetryAfterMs = uint32(e.RetryAfter.Milliseconds())
	completeError(w)
	return w
}

// completeError fills in from the table what an error does not say itself.
func completeError(w *wirepb.Error) {
	c := Lookup(proto.Code(w.Code))
	w.Code = string(c.Code)
	w.Retryable = c.Retryable
	if w.Hint == "" {
		w.Hint = c.Hint
	}
	if w.RetryAfterMs == 0 {
		w.RetryAfterMs = uint32(c.RetryAfter.Milliseconds())
	}
}

package transport

import (
	"context"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Dispatcher is what transport needs of the objects. actors.Host satisfies it.
// Implementations are safe for concurrent use.
type Dispatcher interface {
	// Dispatch hands a client's frame (Submit, Stop) to the object that it names and returns at once. reply is
	// called exactly once, maybe before Dispatch returns and from any goroutine, when the answer may be seen: an
	// answer that depends on a commit waits for it. reply must not block. The frame passed to it carries object
	// and request of f; a refusal is a frame with an Error body.
	Dispatch(ctx context.Context, p proto.Principal, f *wirepb.Frame, reply func(*wirepb.Frame))

	// Attach opens a cursor on an object, subscribing before it reads, so that nothing falls between. wake is
	// called, from any goroutine and without blocking, whenever Next may have more after it returned nothing.
	// An object that does not exist yet can be attached to: its log is empty. Errors are *proto.Error.
	Attach(ctx context.Context, p proto.Principal, object string, a *wirepb.Attach, wake func()) (proto.Cursor, error)
}

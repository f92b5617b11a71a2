// Package actors hosts objects: named, single-threaded actors with private durable state. It gives each object one
// activation at a time, runs its handlers one after the other, commits what they change, and lets nothing out before
// the commit on which it depends is on disk.
//
// The central type is Host. A caller makes one over a store, starts it, and hands it clients' frames:
//
//	host, err := actors.NewHost(actors.Options{
//		Store:  store,
//		Models: catalog,
//		Kinds:  []actors.Kind{session.Kind(session.Options{})},
//	})
//	…
//	err = host.Start(ctx)                       // wakes what a crash interrupted, fires alarms
//	host.Dispatch(ctx, principal, frame, reply) // Submit, Stop
//	cursor, err := host.Attach(ctx, principal, "default/session/demo", &wirepb.Attach{}, wake)
//	…
//	err = host.Drain(ctx)                       // lets running turns end, refuses new ones
//	err = host.Close()
//
// The caller's duties: Start once, Drain before Close where turns may end in peace, close every cursor, close the host
// before the store.
//
// # Handlers
//
// A Kind makes Objects; an Object has one method, Handle, which is called with one event at a time. What it changes
// through its Context is a write-set of that handler:
//
//	Handle returns nil         the write-set joins the object's next commit
//	… a *proto.Error           the write-set is dropped and the caller is refused; the object must be as before
//	… another error, a panic   the write-set is dropped and the activation ends once earlier handlers are durable
//
// One commit of an object is in flight at a time. Handlers go on meanwhile, see what earlier ones wrote, and join the
// next commit. Outputs (replies, statuses, effects) pass a gate: they leave when everything that the handler could
// have seen is durable (invariant 2). A failed commit ends the activation and fails every output that waits.
//
// Effects are work that outlives a handler, such as running a model. They start after the commit, off the mailbox, and
// come back as Output events: what an effect emits gathers in a bounded buffer that blocks only the effect, and is
// handed over whenever no commit is in flight, so that a fast model and a slow disk make few large commits.
//
// # Mailboxes
//
// A mailbox has two lanes. The control lane (commits, effects, alarms, Stop) is always served first; the lane of other
// client messages is bounded, and a message beyond it is refused as overloaded (invariant 12).
//
// # Readers
//
// A cursor pulls from a ring of recent entries that all readers of an object share, and behind that from storage,
// without the mailbox. It never sees beyond the watermark, costs its own size however slow it is (invariant 6), and
// outlives activations.
//
// # Activations
//
// An activation is dropped when it has been idle for a while or when too many exist, and rebuilt by the next event.
// Storage fences older activations by epoch (invariant 1); one that learns of a newer owner ends itself.
// protoactor's package actor schedules activations; nothing of it shows outside this package.
package actors

// Package session is the kind "session": a conversation with a model, as a log of entries.
//
// The central function is Kind, which a host is given:
//
//	host, err := actors.NewHost(actors.Options{
//		Store:  store,
//		Models: catalog,
//		Kinds:  []actors.Kind{session.Kind(session.Options{})},
//	})
//
// # A turn
//
// A Submit begins a turn, named by the offset of its UserMessage. Turns of a session run one after the other, in the
// order in which they were accepted. Each commits before it goes on:
//
//	Submit     UserMessage, message id, index, "live" mark, alarm, attempt number   → Accepted, prepare
//	prepare    reads the conversation, plans (inference.Planner)                     off the mailbox
//	           Attempt with the plan pinned                                         → generate
//	generate   runs the model                                                       off the mailbox
//	           Chunk, Chunk, …        as many as gathered during the commit before
//	           Terminal, index, live mark and alarm cleared, the next turn's attempt
//
// The attempt is counted before anything of it runs, so that what kills the process is not tried for ever: after
// MaxAttempts the turn fails and is parked.
//
// # After a crash
//
// An activation that finds an open turn goes on with it: from the pinned plan and the durable tokens, exactly, if
// there is a plan; from the start if no model has run yet; otherwise it ends the turn as failed ("interrupted") with
// the partial kept, since running a model that cannot continue would say other words, and cost, again. Either way the
// turn ends once (invariant 4).
//
// # Stop
//
// Stop names the turn, comes from any device, and reaches the turn wherever it is: waiting, preparing, generating. It
// cancels the effect's context, keeps what was said, and is the only thing that does: readers come and go without the
// turn knowing (invariant 10).
package session

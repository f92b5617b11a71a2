// Package scheduler turns a batch Stepper into a Runner that serves many conversations at once.
//
// The central type is Scheduler. It owns its Stepper: one goroutine plans a batch, steps the model, samples a token
// for every slot that asked for one, and begins again. Runs join and leave between any two steps:
//
//	s, err := scheduler.New(stepper, tokenizer, template, scheduler.Options{Model: "smollm2-135m-instruct"})
//	if err != nil { … }
//	defer s.Close() // also closes the stepper
//	usage, err := s.Run(ctx, &inference.Request{Messages: messages}, emit)
//
// # Guarantees
//
//  1. An answer is a function of its plan alone. Neither the other runs of a batch, nor the size of prefill chunks, nor
//     a reused prefix, nor an interruption (Request.Resume) changes a token of it, as far as the Stepper keeps its
//     contract.
//  2. The scheduler never waits for a consumer. A slot whose output buffer is full sits out steps; emit and Progress
//     are called on the goroutine that called Run.
//  3. A step holds at most one row for each slot that decodes. Slots that prefill share what is left, at most
//     Options.PrefillRows while any other slot decodes, so that running streams do not stutter.
//  4. A run that is cancelled leaves within one step. A step that works only for cancelled runs is itself cancelled.
//  5. Computed positions pass from one run to another only within an equal, non-empty CacheScope.
//  6. Waiting is bounded (ErrOverloaded beyond), in the order of arrival within a tenant and round robin over tenants.
//  7. A failed or panicking step fails the runs that were in it; after Options.MaxFailures failed steps in a row
//     the model counts as broken and everything is refused with ErrModelUnavailable.
//
// # Tokens and text
//
// Tokens and their text leave together, in chunks of one token or more. They are held back while a character is
// incomplete or while the text may yet turn out to be the beginning of a stop string. Bytes that cannot belong to a
// character become U+FFFD, one for each byte, and so do incomplete bytes at the end of an answer: the joined text of
// an answer is valid UTF-8 and equals its detokenized tokens decoded that way, up to a stop string. An end token is
// not part of the answer: it is in no chunk and not counted. After a crash an answer that had ended but was not
// recorded as ended resumes with all its tokens, and ends again without a chunk.
//
// The files follow the path of a request: plan.go fixes it, queue.go lets it wait, batch.go (pure, without I/O)
// decides which rows a step computes, sample.go and philox.go choose tokens, text.go makes text of them, and
// scheduler.go drives them all.
package scheduler

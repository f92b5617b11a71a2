// Package client speaks holdfast.v1 to a server, over a connection that is made again whenever it breaks.
//
// The central type is Client. It carries submits, stops and attachments to any number of objects:
//
//	c, err := client.Dial(ctx, "http://127.0.0.1:8420", client.Options{})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	object := c.Address("session", "main")
//	a, err := c.Attach(object, client.AttachOptions{Tail: 100})
//	…
//	accepted, err := c.Submit(ctx, object, &wirepb.Submit{MessageId: client.NewMessageID(), Text: "hello"})
//	…
//	for {
//		ev, err := a.Next(ctx)
//		if err != nil {
//			return err
//		}
//		if e := ev.Entry; e != nil {
//			fmt.Print(e.GetChunk().GetText())
//			if e.Turn == accepted.Turn && e.GetTerminal() != nil {
//				return nil
//			}
//		}
//	}
//
// What holds:
//
//  1. Next gives each durable entry exactly once and in offset order, however often the connection breaks. When the
//     history itself is replaced (erased, restored from a backup, below retention), an Event says so first.
//  2. Submit starts at most one turn: it is sent again, with its message id, until it is accepted or refused for good.
//  3. A caller that does not call Next costs a bounded buffer and delays nothing else: past the bound the client
//     detaches, and attaches again when the buffer has been emptied.
//  4. There is one connection at a time, and one try to make it. Tries wait with full jitter, or for as long as the
//     server asked. A close code that says that trying again cannot help (4000 and above, and those for violations of
//     the protocol) ends the client: every call returns the reason.
//
// The caller's duty is Close, which waits for the client's goroutines.
package client

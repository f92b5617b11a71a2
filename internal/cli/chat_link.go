package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport/client"
)

// errUnreachable says that no connection was ever made.
var errUnreachable = errors.New("server not reachable")

// linkOptions say what a clientLink follows.
type linkOptions struct {
	server  *url.URL // http or https; the protocol's path is below it
	session string
	tail    uint64 // entries to begin with
}

// clientLink is a link by a client.Client. Its goroutines are run, which connects and hands on what the session says,
// and one for each stop that is on its way; Close waits for all.
type clientLink struct {
	o      linkOptions
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	events chan event

	ready  chan struct{} // closed when client and object are set
	client *client.Client
	object string
}

// openLink begins to connect. The first event tells whether that succeeded, so that a person may interrupt it.
func openLink(ctx context.Context, o linkOptions) *clientLink {
	l := &clientLink{o: o, events: make(chan event), ready: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.wg.Go(l.run)
	return l
}

func (l *clientLink) Events() <-chan event { return l.events }

// Close breaks the connection.
func (l *clientLink) Close() {
	l.cancel()
	l.wg.Wait()
}

func (l *clientLink) run() {
	c, err := client.Dial(l.ctx, l.o.server.JoinPath("v1/ws").String(), client.Options{Name: "holdfast-chat/1"})
	if err != nil {
		err = explained(err)
		var refused *proto.Error
		if !errors.As(err, &refused) {
			err = fmt.Errorf("%w: %w", errUnreachable, err)
		}
		l.give(event{err: err})
		return
	}
	defer c.Close()
	l.client, l.object = c, c.Address("session", l.o.session)
	close(l.ready)
	a, err := c.Attach(l.object, client.AttachOptions{Tail: l.o.tail})
	if err != nil {
		l.give(event{err: explained(err)})
		return
	}
	defer a.Close()
	for {
		ev, err := a.Next(l.ctx)
		if err != nil {
			l.give(event{err: explained(err)})
			return
		}
		l.give(event{entry: ev.Entry, status: ev.Status, caughtUp: ev.CaughtUp, lost: ev.Lost != nil, reset: ev.Reset != nil})
	}
}

// give hands an event to the chat.
func (l *clientLink) give(ev event) {
	select {
	case l.events <- ev:
	case <-l.ctx.Done():
	}
}

// Submit implements link.
func (l *clientLink) Submit(ctx context.Context, messageID, text string) (uint64, error) {
	select {
	case <-l.ready:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	a, err := l.client.Submit(ctx, l.object, &wirepb.Submit{MessageId: messageID, Text: text})
	return a.GetTurn(), explained(err)
}

// Stop implements link. That the turn has ended is seen in its entries; a stop that is refused leaves it running, which
// is seen too.
func (l *clientLink) Stop(turn uint64) {
	l.wg.Go(func() {
		select {
		case <-l.ready:
			_, _ = l.client.Stop(l.ctx, l.object, turn)
		case <-l.ctx.Done():
		}
	})
}

// explained is err, with what the server says in it made fit for a terminal.
func explained(err error) error {
	var e *proto.Error
	if !errors.As(err, &e) {
		return err
	}
	return coded(e)
}

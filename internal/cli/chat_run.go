package cli

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// link is what a chat needs of a client of one session. It reconnects by itself.
type link interface {
	// Events yields what happens, each entry once and in offset order. An event with err is the last.
	Events() <-chan event
	// Submit sends a message until it is accepted, refused for good, or ctx ends.
	Submit(ctx context.Context, messageID, text string) (turn uint64, err error)
	// Stop asks to end a turn; it does not wait.
	Stop(turn uint64)
	// Close ends the client and everything that it started.
	Close()
}

// event is one thing that happened: one of its fields is set.
type event struct {
	entry    *wirepb.Entry
	status   *wirepb.Status
	caughtUp bool  // every entry that was there at the attachment has been given
	lost     bool  // the connection is gone; another is being made
	reset    bool  // another history follows
	err      error // the link has ended
}

// lines is where a chat gets its messages from.
type lines interface {
	// Ask shows the prompt, if there is one; the next message comes from Next. Done takes the prompt away.
	Ask()
	Next() <-chan line
	Done()
}

type line struct {
	text string
	err  error // io.EOF: there are no more
}

// errInterrupted says that a person gave up.
var errInterrupted = errors.New("interrupted")

// historyTurns is how much of a session is shown when it is opened again.
const historyTurns = 3

// chat is one run of the command. Its methods are for one goroutine.
type chat struct {
	link       link
	screen     screen
	lines      lines
	interrupts <-chan struct{}
	newID      func() string
	// ownOnly shows the answers to this chat's messages only: the output is piped somewhere.
	ownOnly bool
	// banner is shown once the session is open; "" shows none.
	banner string

	turns transcript
	own   string // message id of the message that is being answered
	shown uint64 // the turn that the last text on the screen is of
	armed bool   // Ctrl-C at the prompt: the next one leaves
}

// open reads the history and shows its last turns.
func (c *chat) open(ctx context.Context) error {
	for {
		select {
		case ev := <-c.link.Events():
			switch {
			case ev.err != nil:
				return ev.err
			case ev.reset:
				c.turns = transcript{}
			case ev.entry != nil:
				c.turns.add(ev.entry)
			case ev.caughtUp:
				c.showHistory()
				return nil
			}
		case <-c.interrupts:
			return errInterrupted
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *chat) showHistory() {
	if c.banner != "" {
		c.screen.Note(c.banner)
	}
	for _, k := range c.turns.last(historyTurns) {
		if c.ownOnly {
			break
		}
		c.showSaid(k)
		c.showText(k, k.answer.String())
		if k.end != nil {
			c.showEnd(k)
		}
	}
	for _, k := range append([]*talk(nil), c.turns.order...) {
		if k.end != nil {
			c.turns.forget(k)
		}
	}
}

// converse answers one message after the other until there are no more.
func (c *chat) converse(ctx context.Context) error {
	var failed error
	for {
		c.lines.Ask()
		text, err := c.nextMessage(ctx)
		c.lines.Done()
		if errors.Is(err, io.EOF) {
			return failed
		}
		if err != nil {
			return err
		}
		if text == "" {
			continue
		}
		c.armed = false
		end, err := c.answer(ctx, text)
		if err == nil {
			err = failure(end)
		}
		var refused *proto.Error
		switch {
		case errors.As(err, &refused):
			if c.ownOnly {
				failed = err // the others are still answered
			}
			c.screen.Note(refusal(refused))
		case err != nil:
			return err
		}
	}
}

// nextMessage waits for a message, and shows what other devices do meanwhile.
func (c *chat) nextMessage(ctx context.Context) (string, error) {
	for {
		select {
		case l := <-c.lines.Next():
			return strings.TrimSpace(l.text), l.err
		case ev := <-c.link.Events():
			if err := c.handle(ev); err != nil {
				return "", err
			}
		case <-c.interrupts:
			if c.ownOnly || c.armed {
				return "", errInterrupted
			}
			c.armed = true
			c.screen.Note("Ctrl-C again leaves")
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

type accepted struct {
	turn uint64
	err  error
}

// answer sends a message, shows its answer as it comes and returns how the turn ended.
func (c *chat) answer(ctx context.Context, text string) (*wirepb.Terminal, error) {
	ctx, cancel := context.WithCancel(ctx)
	c.own = c.newID()
	submitted := make(chan accepted, 1)
	id, done := c.own, make(chan struct{})
	go func() {
		defer close(done)
		turn, err := c.link.Submit(ctx, id, text)
		submitted <- accepted{turn, err}
	}()
	defer func() {
		cancel()
		<-done
		c.own = ""
	}()
	var turn uint64
	stopping := false
	for {
		select {
		case a := <-submitted:
			if a.err != nil {
				return nil, a.err
			}
			turn = a.turn
			if stopping {
				c.link.Stop(turn)
			}
		case ev := <-c.link.Events():
			if err := c.handle(ev); err != nil {
				return nil, err
			}
			if ev.reset {
				return nil, proto.Errorf(proto.CodeGone, "the session was erased or restored while its answer was awaited")
			}
			if ev.entry.GetUserMessage().GetMessageId() == id {
				turn = ev.entry.Turn
			}
			if end := ev.entry.GetTerminal(); end != nil && ev.entry.Turn == turn {
				return end, nil
			}
		case <-c.interrupts:
			if stopping {
				c.screen.Note("left alone: the answer may go on at the server")
				return nil, errInterrupted
			}
			stopping = true
			c.screen.Status("stopping; Ctrl-C again leaves it")
			if turn != 0 {
				c.link.Stop(turn)
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// failure is the error that a turn ended with; nil if it was answered, stopped or superseded.
func failure(end *wirepb.Terminal) error {
	switch end.Outcome {
	case wirepb.Outcome_OUTCOME_COMPLETED, wirepb.Outcome_OUTCOME_STOPPED, wirepb.Outcome_OUTCOME_SUPERSEDED:
		return nil
	}
	if e := end.Error; e != nil {
		return coded(&proto.Error{Code: proto.Code(e.Code), Message: e.Message, Hint: e.Hint})
	}
	return proto.Errorf(proto.CodeModelFailed, "the answer ended as %s", end.Outcome)
}

// handle shows one event. Its error ends the chat.
func (c *chat) handle(ev event) error {
	switch {
	case ev.err != nil:
		return ev.err
	case ev.entry != nil:
		c.entry(ev.entry)
	case ev.status != nil:
		if k := c.turns.byID[ev.status.Turn]; k != nil && c.concerns(k) {
			c.screen.Status(progress(ev.status))
		}
	case ev.lost:
		c.screen.Note("connection lost, reconnecting")
	case ev.reset:
		c.turns = transcript{}
		c.screen.Note("this session was erased or restored; its history begins anew")
	}
	return nil
}

// concerns says whether a turn is shown.
func (c *chat) concerns(k *talk) bool { return !c.ownOnly || (c.own != "" && k.messageID == c.own) }

func (c *chat) entry(e *wirepb.Entry) {
	k := c.turns.add(e)
	if k == nil {
		return
	}
	switch b := e.Body.(type) {
	case *wirepb.Entry_UserMessage:
		if c.shown == 0 && c.own == "" && c.concerns(k) {
			c.showSaid(k) // written on another device; not into the middle of an answer
		}
	case *wirepb.Entry_Chunk:
		if c.concerns(k) {
			c.showText(k, b.Chunk.Text)
		}
	case *wirepb.Entry_Terminal:
		if c.concerns(k) {
			c.showEnd(k)
		}
		c.turns.forget(k)
	}
}

// showSaid shows what was asked, unless it was typed here.
func (c *chat) showSaid(k *talk) {
	if !k.shown && (c.own == "" || k.messageID != c.own) {
		c.screen.Said(k.said)
	}
	k.shown = true
}

func (c *chat) showText(k *talk, text string) {
	if text == "" {
		return
	}
	c.showSaid(k)
	if c.shown != k.id {
		c.screen.End()
		c.shown = k.id
	}
	c.screen.Text(text)
}

func (c *chat) showEnd(k *talk) {
	c.showSaid(k)
	c.screen.End()
	c.shown = 0
	// What an own turn failed with is said by the caller of answer.
	if k.messageID == c.own && c.own != "" && failure(k.end) != nil {
		return
	}
	if why := ending(k.end); why != "" {
		c.screen.Note(why)
	}
}

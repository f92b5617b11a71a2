package wiretest

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Log is the history of one object.
type Log struct {
	mu struct {
		sync.Mutex
		incarnation uint32
		entries     []*wirepb.Entry
		status      *wirepb.Status
		statusSeq   int
		ids         map[string]uint64
		stops       map[uint64]context.CancelFunc
		changed     chan struct{} // closed and replaced at every change
	}
}

func newLog() *Log {
	l := &Log{}
	l.mu.incarnation = 1
	l.mu.ids = make(map[string]uint64)
	l.mu.stops = make(map[uint64]context.CancelFunc)
	l.mu.changed = make(chan struct{})
	return l
}

func (l *Log) changedLocked() {
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

// Append gives e the next offset and shows it to whoever is attached. A user message begins a turn of its own offset.
func (l *Log) Append(e *wirepb.Entry) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(e)
}

func (l *Log) appendLocked(e *wirepb.Entry) uint64 {
	e.Offset = uint64(len(l.mu.entries)) + 1
	e.TimeUnixMs = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC).UnixMilli() + int64(e.Offset)
	if e.GetUserMessage() != nil {
		e.Turn = e.Offset
	}
	l.mu.entries = append(l.mu.entries, e)
	l.changedLocked()
	return e.Offset
}

// Status shows an ephemeral frame.
func (l *Log) Status(s *wirepb.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.status = s
	l.mu.statusSeq++
	l.changedLocked()
}

// Replace begins another incarnation with an empty history; cursors of the old one are gone.
func (l *Log) Replace() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.incarnation++
	l.mu.entries = nil
	l.mu.ids = make(map[string]uint64)
	l.changedLocked()
}

// Entries returns what the log holds.
func (l *Log) Entries() []*wirepb.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*wirepb.Entry(nil), l.mu.entries...)
}

func (l *Log) begin(m *wirepb.Submit) (turn uint64, fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, ok := l.mu.ids[m.MessageId]; ok {
		return id, false
	}
	id := l.appendLocked(&wirepb.Entry{Body: &wirepb.Entry_UserMessage{UserMessage: &wirepb.UserMessage{
		MessageId: m.MessageId, Text: m.Text, User: "local",
	}}})
	l.mu.ids[m.MessageId] = id
	return id, true
}

func (l *Log) setStop(turn uint64, f context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.stops[turn] = f
}

func (l *Log) stop(turn uint64) (stopped uint64, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if turn == 0 {
		turn = l.liveLocked()
	}
	for _, e := range l.mu.entries {
		if e.Turn == turn && e.GetTerminal() != nil {
			return turn, true
		}
	}
	if f := l.mu.stops[turn]; f != nil {
		f()
	}
	return turn, false
}

func (l *Log) liveLocked() uint64 {
	open := make(map[uint64]bool)
	for _, e := range l.mu.entries {
		if e.GetUserMessage() != nil {
			open[e.Turn] = true
		}
		if e.GetTerminal() != nil {
			delete(open, e.Turn)
		}
	}
	var live uint64
	for id := range open {
		if live == 0 || id < live {
			live = id
		}
	}
	return live
}

// attach resolves where a reader starts.
func (l *Log) attach(a *wirepb.Attach) (*wirepb.Attached, *wirepb.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := uint64(len(l.mu.entries))
	present := &wirepb.Cursor{Generation: 1, Incarnation: l.mu.incarnation, Offset: n}
	var from uint64
	switch after := a.GetAfter(); {
	case after == nil:
		if a.GetTail() > 0 && a.GetTail() < n {
			from = n - a.GetTail()
		}
	case after.Incarnation != 0 && after.Incarnation != l.mu.incarnation, after.Offset > n:
		return nil, &wirepb.Error{Code: "gone", Message: "this cursor is of another history", FirstHeld: 1, Present: present}
	default:
		from = after.Offset
	}
	return &wirepb.Attached{
		From:      &wirepb.Cursor{Generation: 1, Incarnation: l.mu.incarnation, Offset: from},
		Watermark: n, FirstHeld: 1, LiveTurn: l.liveLocked(),
	}, nil
}

// after returns what a reader that stands at offset and has seen statusSeq statuses lacks, and a channel that is
// closed when there is more.
func (l *Log) after(offset uint64, statusSeq int) ([]*wirepb.Entry, *wirepb.Status, int, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var entries []*wirepb.Entry
	if offset < uint64(len(l.mu.entries)) {
		entries = append(entries, l.mu.entries[offset:]...)
	}
	var status *wirepb.Status
	if statusSeq < l.mu.statusSeq {
		status = l.mu.status
	}
	return entries, status, l.mu.statusSeq, l.mu.changed
}

// Turn is what a script plays on.
type Turn struct {
	ID      uint64
	Text    string
	Context context.Context // done when the server ends
	Stopped <-chan struct{} // closed when a client has asked to stop, and when the server ends

	log  *Log
	step uint32
}

// Attempt says that a model begins.
func (t *Turn) Attempt(model string) {
	t.log.Append(&wirepb.Entry{Turn: t.ID, Body: &wirepb.Entry_Attempt{Attempt: &wirepb.Attempt{Number: 1, Model: model, PromptTokens: 12}}})
}

// Say appends a chunk for each piece.
func (t *Turn) Say(pieces ...string) {
	for _, p := range pieces {
		t.log.Append(&wirepb.Entry{Turn: t.ID, Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: p, Tokens: []uint32{7}, Step: t.step}}})
		t.step++
	}
}

// Status shows a phase of the turn.
func (t *Turn) Status(phase wirepb.Phase, position, waiting, done, total uint32) {
	t.log.Status(&wirepb.Status{Turn: t.ID, Phase: phase, Position: position, Waiting: waiting, Done: done, Total: total})
}

// Complete ends the turn as completed.
func (t *Turn) Complete() {
	t.End(&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_COMPLETED, FinishReason: "stop"})
}

// End ends the turn.
func (t *Turn) End(terminal *wirepb.Terminal) {
	if terminal.Usage == nil {
		terminal.Usage = &wirepb.Usage{PromptTokens: 12, CompletionTokens: t.step, CompletionMs: 40 * t.step}
	}
	t.log.Append(&wirepb.Entry{Turn: t.ID, Body: &wirepb.Entry_Terminal{Terminal: terminal}})
}

package killtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Options of a Harness. The zero value of a field takes its default.
type Options struct {
	Rounds int    // kills; 10
	Seed   uint64 // of the moments and the texts; 1
	Echo   int    // sessions on the echo model; 12
	Model  int    // sessions on the server's default model; 0
	Binary string // of the server; built when empty
	// Life of the server in one round, drawn between MinLife and MaxLife.
	MinLife, MaxLife time.Duration
}

// Harness runs rounds of life and sudden death on one data folder.
type Harness struct {
	tb       testing.TB
	o        Options
	rng      *rand.Rand
	server   *server
	sessions []*session
	next     []int // of each session: number of the next message
}

// New builds and starts nothing but prepares everything.
func New(tb testing.TB, o Options) *Harness {
	tb.Helper()
	if o.Rounds == 0 {
		o.Rounds = 10
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Echo == 0 {
		o.Echo = 12
	}
	if o.MinLife == 0 {
		o.MinLife = 150 * time.Millisecond
	}
	if o.MaxLife == 0 {
		o.MaxLife = 1500 * time.Millisecond
	}
	if o.Binary == "" {
		o.Binary = Build(tb)
	}
	h := &Harness{tb: tb, o: o, rng: rand.New(rand.NewPCG(o.Seed, 0)), server: newServer(tb, o.Binary)}
	for i := range o.Echo {
		h.sessions = append(h.sessions, newSession(fmt.Sprintf("default/session/echo-%d", i), "echo", func(n int) string {
			return fmt.Sprintf("/echo n=%d gap=%dms", 5+(n*7+i)%60, (n+i)%12)
		}))
	}
	for i := range o.Model {
		s := newSession(fmt.Sprintf("default/session/model-%d", i), "", func(n int) string {
			return fmt.Sprintf("Tell me about the number %d and the letter %c.", n*13+i, 'A'+n%26)
		})
		s.limit = 3 + o.Rounds // enough to be in the middle of one at every kill
		h.sessions = append(h.sessions, s)
	}
	h.next = make([]int, len(h.sessions))
	return h
}

// Run kills the server Rounds times.
func (h *Harness) Run() {
	for round := range h.o.Rounds {
		h.server.start()
		life := h.o.MinLife + time.Duration(h.rng.Int64N(int64(h.o.MaxLife-h.o.MinLife)))
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for i, s := range h.sessions {
			rng := rand.New(rand.NewPCG(h.o.Seed, uint64(round)<<32|uint64(i)+1))
			wg.Go(func() { h.next[i] = s.drive(ctx, h.server.addr, h.next[i], rng) })
		}
		<-time.After(life)
		h.server.kill() // while everything streams
		cancel()
		wg.Wait()
		h.report(round, life)
		if h.tb.Failed() {
			return
		}
	}
}

func (h *Harness) report(round int, life time.Duration) {
	entries, turns := 0, 0
	for _, s := range h.sessions {
		s.mu.Lock()
		entries += len(s.mu.seen)
		turns += len(s.mu.accepted)
		for _, f := range s.mu.faults {
			h.tb.Errorf("round %d: %s", round, f)
		}
		s.mu.Unlock()
	}
	h.tb.Logf("round %d: killed after %v; %d turns accepted and %d entries seen so far", round, life.Round(time.Millisecond), turns, entries)
}

// Verify starts the server once more, waits until no turn is open, and reads every log from its start.
func (h *Harness) Verify() {
	h.tb.Helper()
	h.server.start()
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range h.sessions {
		wg.Go(func() { h.verify(ctx, s) })
	}
	wg.Wait()
	for _, s := range h.sessions {
		if s.model == "" {
			h.compareUndisturbed(ctx, s)
		}
	}
	h.server.kill()
	h.report(h.o.Rounds, 0)
}

// verify reads s to a point where every turn has ended and checks the whole log.
func (h *Harness) verify(ctx context.Context, s *session) {
	log, err := wholeLog(ctx, h.server.addr, s)
	if err != nil {
		s.faultf("final read: %v", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for off := range s.mu.seen {
		if off > uint64(len(log)) {
			s.faultLocked("offset %d was shown to a client and is lost; the log ends at %d", off, len(log))
		}
	}
	terminals, ids, texts := map[uint64]int{}, map[string]uint64{}, map[uint64]*strings.Builder{}
	for _, e := range log {
		switch b := e.Body.(type) {
		case *wirepb.Entry_UserMessage:
			id := b.UserMessage.MessageId
			if first, ok := ids[id]; ok {
				s.faultLocked("message %s is in the log twice, at %d and %d", id, first, e.Offset)
			}
			ids[id] = e.Turn
			if want := s.mu.sent[id]; b.UserMessage.Text != want {
				s.faultLocked("message %s: text %q, sent %q", id, b.UserMessage.Text, want)
			}
			if e.Turn != e.Offset {
				s.faultLocked("turn %d starts at offset %d", e.Turn, e.Offset)
			}
			texts[e.Turn] = &strings.Builder{}
		case *wirepb.Entry_Chunk:
			if terminals[e.Turn] > 0 {
				s.faultLocked("chunk at %d after the terminal of turn %d", e.Offset, e.Turn)
			}
			texts[e.Turn].WriteString(b.Chunk.Text)
		case *wirepb.Entry_Terminal:
			terminals[e.Turn]++
			h.checkAnswer(s, e, texts[e.Turn].String(), log)
		}
	}
	for id, turn := range s.mu.accepted {
		if ids[id] != turn {
			s.faultLocked("message %s was accepted as turn %d; the log has it as %d", id, turn, ids[id])
		}
	}
	for turn := range texts {
		if terminals[turn] != 1 {
			s.faultLocked("turn %d has %d terminals", turn, terminals[turn])
		}
	}
}

// checkAnswer compares an answer that survived crashes with what an undisturbed one is.
func (h *Harness) checkAnswer(s *session, e *wirepb.Entry, text string, log []*wirepb.Entry) {
	t := e.GetTerminal()
	if t.Outcome != wirepb.Outcome_OUTCOME_COMPLETED {
		s.faultLocked("turn %d ended as %v (%s: %s)", e.Turn, t.Outcome, t.Error.GetCode(), t.Error.GetMessage())
		return
	}
	if s.model != "echo" {
		return
	}
	ask := log[e.Turn-1].GetUserMessage().GetText()
	var n, gap int
	fmt.Sscanf(ask, "/echo n=%d gap=%dms", &n, &gap)
	var want strings.Builder
	for i := range min(n, 40) {
		fmt.Fprintf(&want, "tok%d ", i)
	}
	if text != want.String() {
		s.faultLocked("turn %d answers %q, want %q; its entries: %s", e.Turn, text, want.String(), entriesOf(log, e.Turn))
	}
}

// compareUndisturbed asks the same questions in a fresh session that nobody kills: continuation after a crash is exact
// if every answer has the same tokens.
func (h *Harness) compareUndisturbed(ctx context.Context, s *session) {
	log, err := wholeLog(ctx, h.server.addr, s)
	if err != nil {
		s.faultf("read for comparison: %v", err)
		return
	}
	control := newSession(s.object+"-undisturbed", s.model, s.ask)
	compared, resumed := 0, 0
	for _, e := range log {
		if e.GetAttempt().GetResumedStep() > 0 {
			resumed++
		}
		t := e.GetTerminal()
		if t == nil {
			continue
		}
		u := log[e.Turn-1].GetUserMessage()
		got, err := askAndWait(ctx, h.server.addr, control, u)
		if err != nil {
			s.faultf("undisturbed run of turn %d: %v", e.Turn, err)
			return
		}
		if want := tokensOf(log, e.Turn); !slices.Equal(got, want) {
			s.faultf("turn %d continued after a crash as %v; undisturbed it is %v", e.Turn, want, got)
			return
		}
		compared++
	}
	h.tb.Logf("%s: %d answers, continued %d times in mid-sentence, equal to those of an undisturbed session", s.object, compared, resumed)
}

// entriesOf describes the log from a turn's first entry to its last, for a fault.
func entriesOf(log []*wirepb.Entry, turn uint64) string {
	var b strings.Builder
	for _, e := range log[turn-1:] {
		fmt.Fprintf(&b, "\n    %v", e)
		if e.Turn == turn && e.GetTerminal() != nil {
			break
		}
	}
	return b.String()
}

func tokensOf(log []*wirepb.Entry, turn uint64) []uint32 {
	var t []uint32
	for _, e := range log {
		if e.Turn == turn {
			t = append(t, e.GetChunk().GetTokens()...)
		}
	}
	return t
}

// askAndWait submits what u says to a session and returns the tokens of its answer.
func askAndWait(ctx context.Context, addr string, s *session, u *wirepb.UserMessage) ([]uint32, error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	defer c.close()
	if err := c.write(&wirepb.Frame{Object: s.object, Request: 1, Body: &wirepb.Frame_Submit{Submit: &wirepb.Submit{
		MessageId: u.MessageId, Text: u.Text, Options: u.Options}}}); err != nil {
		return nil, err
	}
	f, _, err := c.read()
	if err != nil {
		return nil, err
	}
	if f.GetAccepted() == nil {
		return nil, fmt.Errorf("answer to submit: %v", f)
	}
	log, err := wholeLog(ctx, addr, s)
	if err != nil {
		return nil, err
	}
	return tokensOf(log, f.GetAccepted().Turn), nil
}

// wholeLog attaches at 0 and reads until the log holds an end for every turn in it.
func wholeLog(ctx context.Context, addr string, s *session) ([]*wirepb.Entry, error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	defer c.close()
	if err := c.write(&wirepb.Frame{Object: s.object, Request: 1, Body: &wirepb.Frame_Attach{Attach: &wirepb.Attach{}}}); err != nil {
		return nil, err
	}
	var log []*wirepb.Entry
	open, caughtUp := map[uint64]bool{}, false
	for !caughtUp || len(open) > 0 {
		f, raw, err := c.read()
		if err != nil {
			return nil, fmt.Errorf("with %d turns open at offset %d: %w", len(open), len(log), err)
		}
		if e := f.GetError(); e != nil {
			return nil, fmt.Errorf("%s: %s", e.Code, e.Message)
		}
		if f.GetCaughtUp() != nil {
			caughtUp = true
		}
		e := f.GetEntry()
		if e == nil {
			continue
		}
		if e.Offset != uint64(len(log))+1 {
			return nil, fmt.Errorf("offset %d follows %d", e.Offset, len(log))
		}
		s.note(e, raw)
		log = append(log, proto.Clone(e).(*wirepb.Entry))
		switch {
		case e.GetUserMessage() != nil:
			open[e.Turn] = true
		case e.GetTerminal() != nil:
			delete(open, e.Turn)
		}
	}
	return log, nil
}

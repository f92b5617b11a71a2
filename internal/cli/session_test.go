package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-ai/holdfast/internal/wiretest"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

func entriesOf(bodies ...*wirepb.Entry) []*wirepb.Entry {
	turn := uint64(0)
	for i, e := range bodies {
		e.Offset, e.TimeUnixMs = uint64(i+1), 1_700_000_000_000
		if e.GetUserMessage() != nil {
			turn = e.Offset
		}
		if e.GetState() == nil {
			e.Turn = turn
		}
	}
	return bodies
}

func said(text string) *wirepb.Entry {
	return &wirepb.Entry{Body: &wirepb.Entry_UserMessage{UserMessage: &wirepb.UserMessage{Text: text, User: "local"}}}
}

func attempt(n uint32) *wirepb.Entry {
	return &wirepb.Entry{Body: &wirepb.Entry_Attempt{Attempt: &wirepb.Attempt{Number: n, Model: "m"}}}
}

func chunk(text string) *wirepb.Entry {
	return &wirepb.Entry{Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: text}}}
}

func ended(t *wirepb.Terminal) *wirepb.Entry {
	return &wirepb.Entry{Body: &wirepb.Entry_Terminal{Terminal: t}}
}

func TestTranscript(t *testing.T) {
	entries := entriesOf(
		said("hello\nthere"), attempt(1), chunk("hi \x1b[31m"), attempt(2), chunk("you\n"),
		ended(&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_COMPLETED, FinishReason: "stop", Usage: &wirepb.Usage{CompletionTokens: 30, CompletionMs: 1500}}),
		&wirepb.Entry{Body: &wirepb.Entry_State{State: &wirepb.State{Key: "title"}}},
		said("fail"), attempt(1), ended(&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_FAILED, Error: &wirepb.Error{Code: "model_failed", Message: "boom"}}),
		said("stop"), ended(&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED}),
		said("call"), attempt(1), &wirepb.Entry{Body: &wirepb.Entry_ToolCall{ToolCall: &wirepb.ToolCall{Name: "clock", ArgumentsJson: "{}"}}},
	)
	var b bytes.Buffer
	if err := writeTranscript(&b, "default/session/s", entries); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	for _, want := range []string{
		"default/session/s: 4 turns, 15 entries\n",
		"\n[1] 2023-11-14T22:13:20Z  local\n    hello\n    there\n  -> m, 2 attempts, completed (stop), 30 tokens, 20.0 tokens/s\n    hi ",
		"you\n\n[8] ",
		"  -> m, failed (model_failed: boom)\n",
		"  -> stopped\n",
		"  -> m, open\n    calls clock {}\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the transcript lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") {
		t.Error("an escape sequence reached the terminal")
	}
}

func TestWriteEntries(t *testing.T) {
	var b bytes.Buffer
	if err := writeEntries(&b, entriesOf(said("a"), chunk("b"))); err != nil {
		t.Fatal(err)
	}
	const want = `{"offset":"1","timeUnixMs":"1700000000000","turn":"1","userMessage":{"text":"a","user":"local"}}
{"offset":"2","timeUnixMs":"1700000000000","turn":"1","chunk":{"text":"b"}}
`
	if b.String() != want {
		t.Errorf("got %s", b.String())
	}
}

func TestReadSession(t *testing.T) {
	s := wiretest.New(t, wiretest.Options{})
	_, _, err := readSession(context.Background(), s.URL, "nothing")
	var e *proto.Error
	if !errors.As(err, &e) || e.Code != proto.CodeNotFound || e.Hint == "" {
		t.Errorf("a session without entries: %v", err)
	}
	s.Down(true)
	if _, _, err = readSession(context.Background(), s.URL, "main"); !errors.As(err, &e) || e.Code != proto.CodeUnavailable {
		t.Errorf("a server that is down: %v", err)
	}
	if _, _, err = readSession(context.Background(), "ftp://x", "main"); !errors.As(err, &e) || e.Code != proto.CodeInvalidArgument {
		t.Errorf("no address: %v", err)
	}
}

//go:build browser

package web_test

import (
	"testing"

	"github.com/holdfast-ai/holdfast/internal/wiretest"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/web"
)

const sampler = "Tides rise and fall because the **Moon** pulls on the near side of the Earth more than on the far side. " +
	"The Sun does the same, at a little under *half* the strength.\n\n" +
	"- *Spring tides* come when both pull along one line.\n- *Neap tides* come a week later, when they pull at right angles.\n\n" +
	"The height follows, roughly,\n\n```go\nfunc height(t time.Duration) float64 {\n\tphase := 2 * math.Pi * t.Hours() / 12.42 // hours between high waters\n\treturn mean + range/2*math.Cos(phase)\n}\n```\n\n" +
	"where `range` depends on the coast. See [the tables](https://example.org/tides) for yours."

// fill puts a conversation into the log that shows everything a page can show.
func fill(l *wiretest.Log) {
	say := func(text string) uint64 {
		id := l.Append(&wirepb.Entry{Body: &wirepb.Entry_UserMessage{UserMessage: &wirepb.UserMessage{MessageId: text, Text: text}}})
		l.Append(&wirepb.Entry{Turn: id, Body: &wirepb.Entry_Attempt{Attempt: &wirepb.Attempt{Number: 1, Model: "scripted"}}})
		return id
	}
	chunk := func(turn uint64, text string) {
		l.Append(&wirepb.Entry{Turn: turn, Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: text}}})
	}
	end := func(turn uint64, t *wirepb.Terminal) {
		t.Usage = &wirepb.Usage{PromptTokens: 40, CompletionTokens: 142, CompletionMs: 5916}
		l.Append(&wirepb.Entry{Turn: turn, Body: &wirepb.Entry_Terminal{Terminal: t}})
	}
	a := say("Why are there tides? Show me the height as a function.")
	chunk(a, sampler)
	end(a, &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_COMPLETED, FinishReason: "stop"})
	b := say("And on the Moon itself?")
	chunk(b, "The Moon has no seas, but its rock is lifted by about")
	end(b, &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED})
	c := say("Then write the whole almanac, please.")
	chunk(c, "It begins with")
	end(c, &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_FAILED, Error: &wirepb.Error{
		Code: "context_overflow", Message: "the answer would pass the model's 2048 tokens", Hint: "begin a new session, or ask for less",
	}})
}

// TestLook draws the page in its states, for people to look at, and checks what a machine can see of them.
func TestLook(t *testing.T) {
	br := browser(t)
	for _, c := range []struct {
		name string
		look look
	}{{"desktop", desktop}, {"desktop-dark", desktopDark}, {"phone", phone}, {"phone-dark", phoneDark}} {
		t.Run(c.name, func(t *testing.T) {
			s := wiretest.New(t, wiretest.Options{Web: web.Handler()})
			empty := open(t, br, c.look, s.URL+"/#/tide-tables")
			empty.await(`!document.getElementById('welcome').hidden`)
			empty.picture(c.name + "-empty")
			fill(s.Log("default/session/tides"))
			b := open(t, br, c.look, s.URL+"/#/tides")
			b.await(ended(3))
			b.picture(c.name + "-end")
			b.js(`document.getElementById('scroller').scrollTop = 0`)
			b.await(`!document.getElementById('newest').hidden`)
			b.picture(c.name + "-top")
			for _, e := range s.Log("default/session/tides").Entries()[:4] {
				s.Log("default/session/tide-tables").Append(&wirepb.Entry{Turn: e.Turn, Body: e.Body})
			}
			empty.await(ended(1))
			empty.picture(c.name + "-readme")
		})
	}
}

//go:build browser

package web_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-ai/holdfast/internal/wiretest"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/web"
)

const script = "Slack water comes twice a day, and between the two the whole bay breathes out and in again. "

// paced plays text word by word, each when the test lets it, and ends as stopped when it is told to stop.
func paced(text string, next <-chan struct{}) func(*wiretest.Turn) {
	return func(t *wiretest.Turn) {
		t.Attempt("scripted")
		for _, word := range strings.SplitAfter(text, " ") {
			select {
			case <-next:
			case <-t.Stopped:
				t.End(&wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED})
				return
			}
			t.Say(word)
		}
		t.Complete()
	}
}

// release lets n words go.
func release(next chan<- struct{}, n int) {
	for range n {
		next <- struct{}{}
	}
}

// words are the first n words of the script.
func words(n int) string {
	return strings.Join(strings.SplitAfter(script, " ")[:n], "")
}

func says(n int, want string) string {
	return fmt.Sprintf("%s.trim() === %q", answer(n), strings.TrimSpace(want))
}

func serve(t *testing.T, play func(*wiretest.Turn)) *wiretest.Server {
	return wiretest.New(t, wiretest.Options{Web: web.Handler(), OnSubmit: play, PingIntervalMS: 500})
}

func echo(t *wiretest.Turn) {
	t.Attempt("scripted")
	t.Say("You said: ", t.Text)
	t.Complete()
}

func TestSendStreamStop(t *testing.T) {
	next := make(chan struct{})
	s := serve(t, paced(script, next))
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.await(`!document.getElementById('welcome').hidden`)
	if !eval[bool](b, `document.getElementById('stop').hidden`) {
		t.Error("Stop is there while nothing runs")
	}
	b.write("When is slack water?")
	b.await(`document.querySelector('.progress')?.textContent.includes('Thinking')`)
	for n := 1; n <= 5; n++ {
		release(next, 1)
		b.await(says(1, words(n)))
	}
	b.picture("desktop-streaming")
	b.do(chromedp.Click(chromedp.CSS("#stop")))
	b.await(`document.querySelector('.note .why')?.textContent === 'Stopped.'`)
	b.await(`document.getElementById('stop').hidden`)
	b.await(says(1, words(5)))
	if got := eval[string](b, `document.querySelector('.said .text').textContent`); got != "When is slack water?" {
		t.Errorf("the page shows %q as what was sent", got)
	}
}

func TestReloadKeepsHistory(t *testing.T) {
	next := make(chan struct{}, 100)
	s := serve(t, paced(script, next))
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.write("When?")
	release(next, 4)
	b.await(says(1, words(4)))
	b.do(chromedp.SendKeys(chromedp.CSS("#text"), "half a thou"))
	b.do(chromedp.Reload())
	b.await(says(1, words(4)))
	if got := eval[string](b, `document.getElementById('text').value`); got != "half a thou" {
		t.Errorf("the draft after a reload is %q", got)
	}
	release(next, 50)
	b.await(says(1, script))
	b.await(ended(1))
}

// TestCutInMidSentence breaks the connection at every other word, and keeps the server away for a moment.
func TestCutInMidSentence(t *testing.T) {
	next := make(chan struct{}, 100)
	s := serve(t, paced(script, next))
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.expect("WebSocket connection to") // a refused handshake: the browser logs it, not the page
	b.write("When?")
	for n := 1; n < 8; n += 2 {
		release(next, 1)
		b.await(says(1, words(n)))
		if n == 3 {
			s.Down(true)
		}
		s.Cut()
		release(next, 1) // said while nobody listens
		if n == 3 {
			b.await(`!document.getElementById('connection').hidden && document.getElementById('connection-text').textContent === 'Reconnecting…'`)
			b.picture("desktop-reconnecting")
			s.Down(false)
		}
		b.await(says(1, words(n+1)))
		b.await(`document.getElementById('connection').hidden`)
	}
	release(next, 50)
	b.await(says(1, script))
	b.await(ended(1))
	if n := eval[int](b, `document.querySelectorAll('article').length`); n != 1 {
		t.Errorf("%d turns on the page, want 1", n)
	}
}

func TestDrain(t *testing.T) {
	s := serve(t, echo)
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.await(`!document.getElementById('welcome').hidden`)
	dials := s.Dials()
	s.Drain(300 * time.Millisecond)
	b.write("Are you there?")
	b.await(says(1, "You said: Are you there?"))
	if got := s.Dials() - dials; got != 1 {
		t.Errorf("%d connections after a drain, want 1", got)
	}
}

func TestTwoTabs(t *testing.T) {
	next := make(chan struct{}, 100)
	s := serve(t, paced(script, next))
	br := browser(t)
	a := open(t, br, desktop, s.URL+"/#/bay")
	b := open(t, br, phone, s.URL+"/#/bay")
	a.await(`!document.getElementById('welcome').hidden`)
	b.await(`!document.getElementById('welcome').hidden`)
	a.write("From the desk")
	release(next, 3)
	for _, tab := range []*tab{a, b} {
		tab.await(says(1, words(3)))
		tab.await(`document.querySelector('.said .text').textContent === 'From the desk'`)
	}
	b.picture("phone-streaming")
	b.do(chromedp.Click(chromedp.CSS("#stop")))
	for _, tab := range []*tab{a, b} {
		tab.await(`document.querySelector('.note .why')?.textContent === 'Stopped.'`)
	}
	b.write("From the beach")
	a.await(`document.querySelectorAll('.said .text')[1]?.textContent === 'From the beach'`)
	release(next, 50)
	for _, tab := range []*tab{a, b} {
		tab.await(says(2, script))
		tab.await(ended(2))
	}
}

// TestUnsentSurvives writes while the server is away, reloads, and expects one turn when it is back.
func TestUnsentSurvives(t *testing.T) {
	s := serve(t, echo)
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.expect("WebSocket connection to")
	b.await(`!document.getElementById('welcome').hidden`)
	s.Down(true)
	s.Cut()
	b.await(`!document.getElementById('connection').hidden`)
	b.write("Still here?")
	b.await(`document.querySelector('.unsent .text')?.textContent === 'Still here?'`)
	b.do(chromedp.Reload())
	b.await(`document.querySelector('.unsent .text')?.textContent === 'Still here?'`)
	s.Down(false)
	b.await(says(1, "You said: Still here?"))
	b.await(`!document.querySelector('.unsent .text')`)
	b.do(chromedp.Reload())
	b.await(says(1, "You said: Still here?"))
	turns := 0
	for _, e := range s.Log("default/session/bay").Entries() {
		if e.GetUserMessage() != nil {
			turns++
		}
	}
	if turns != 1 {
		t.Errorf("the message started %d turns, want 1", turns)
	}
}

func TestRefusals(t *testing.T) {
	s := serve(t, echo)
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.await(`!document.getElementById('welcome').hidden`)

	s.RefuseNext(&wirepb.Error{Code: "overloaded", Message: "the session's queue is full", Retryable: true, RetryAfterMs: 400})
	b.write("One")
	b.await(`document.querySelector('.unsent .progress')?.textContent.includes('queue is full. Trying again in')`)
	b.await(says(1, "You said: One"))

	s.RefuseNext(&wirepb.Error{Code: "too_large", Message: "the message has 70000 bytes, 65536 are allowed", Hint: "send it in parts"})
	b.write("Two")
	b.await(`document.querySelector('.unsent .why')?.textContent.startsWith('Not sent. The message has')`)
	b.await(`document.querySelector('.unsent .hint').textContent === 'Send it in parts.'`)
	b.picture("desktop-refused")
	b.js(`[...document.querySelectorAll('.unsent button')].find((x) => x.textContent === 'Edit').click()`)
	b.await(`document.getElementById('text').value === 'Two' && !document.querySelector('.unsent')`)
	b.do(chromedp.SendKeys(chromedp.CSS("#text"), " parts"), chromedp.Click(chromedp.CSS("#send")))
	b.await(says(2, "You said: Two parts"))
}

func TestFatal(t *testing.T) {
	s := serve(t, echo)
	s.Fatal(4403)
	b := open(t, browser(t), phone, s.URL+"/#/bay")
	b.await(`!document.getElementById('alert').hidden`)
	b.picture("phone-fatal")
	if got := eval[string](b, `document.getElementById('alert').innerText`); !strings.Contains(got, "This page may not speak to the server.") || !strings.Contains(got, "Sign in again.") {
		t.Errorf("the alert says %q", got)
	}
	dials := s.Dials()
	s.Fatal(0)
	b.do(chromedp.Click(chromedp.CSS("#alert-retry")))
	b.await(`document.getElementById('alert').hidden && !document.getElementById('welcome').hidden`)
	if got := s.Dials() - dials; got != 1 {
		t.Errorf("%d connections between the fatal close and the answer to the button, want 1", got)
	}
}

func TestEndings(t *testing.T) {
	ends := []*wirepb.Terminal{
		{Outcome: wirepb.Outcome_OUTCOME_FAILED, Error: &wirepb.Error{Code: "context_overflow", Message: "the model sees 2048 tokens", Hint: "shorten the message"}},
		{Outcome: wirepb.Outcome_OUTCOME_FAILED, Error: &wirepb.Error{Code: "model_failed", Message: "the model gave no numbers", Hint: "submit again with a new message id"}},
		{Outcome: wirepb.Outcome_OUTCOME_BLOCKED, Error: &wirepb.Error{Code: "blocked", Message: "withheld by a rule"}},
		{Outcome: wirepb.Outcome_OUTCOME_SUPERSEDED},
		{Outcome: wirepb.Outcome_OUTCOME_COMPLETED, FinishReason: "length"},
		{Outcome: wirepb.Outcome_OUTCOME_STOPPED},
	}
	want := []string{
		"The answer broke off. The model sees 2048 tokens.|Shorten the message.", "The answer broke off. The model gave no numbers.", "Withheld by a rule.", "A later message took its place.",
		"The answer ends here: it reached its length limit.", "Stopped.",
	}
	turns := make(chan *wirepb.Terminal, len(ends)+1)
	s := serve(t, func(t *wiretest.Turn) {
		t.Say("Some words")
		t.End(<-turns)
	})
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	for i, end := range ends {
		turns <- end
		b.write(fmt.Sprintf("Question %d", i))
		b.await(ended(i + 1))
		if got := eval[string](b, fmt.Sprintf(`[...document.querySelectorAll('article')[%d].querySelectorAll('.note p')].map((p) => p.textContent).join('|')`, i)); got != want[i] {
			t.Errorf("%s: the page says %q, want %q", end.Outcome, got, want[i])
		}
	}
	turns <- &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_COMPLETED}
	b.js(`[...document.querySelectorAll('article')[0].querySelectorAll('.foot button')].find((x) => x.textContent === 'Try again').click()`)
	b.await(ended(7))
	if got := eval[string](b, `document.querySelectorAll('article')[6].querySelector('.said .text').textContent`); got != "Question 0" {
		t.Errorf("trying again asks %q", got)
	}
}

func TestProgress(t *testing.T) {
	steps := make(chan func(*wiretest.Turn))
	s := serve(t, func(t *wiretest.Turn) {
		for step := range steps {
			step(t)
		}
	})
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.write("Well?")
	for _, c := range []struct {
		phase                          wirepb.Phase
		position, waiting, done, total uint32
		want                           string
	}{
		{wirepb.Phase_PHASE_QUEUED, 3, 5, 0, 0, "In line for the model: 3 of 5"},
		{wirepb.Phase_PHASE_QUEUED, 1, 5, 0, 0, "Next in line for the model"},
		{wirepb.Phase_PHASE_LOADING, 0, 0, 45, 100, "Loading the model 45 %"},
		{wirepb.Phase_PHASE_PREFILL, 0, 0, 1, 3, "Reading 33 %"},
		{wirepb.Phase_PHASE_RUNNING, 0, 0, 0, 0, "Thinking…"},
	} {
		steps <- func(t *wiretest.Turn) { t.Status(c.phase, c.position, c.waiting, c.done, c.total) }
		b.await(fmt.Sprintf(`document.querySelector('.turn .progress')?.textContent === %q`, c.want))
	}
	b.picture("desktop-waiting")
	b.write("And then?") // waits for the first
	b.await(`document.querySelectorAll('article[data-turn] .progress')[1]?.textContent.startsWith('Waits for the answer before it.')`)
	steps <- func(t *wiretest.Turn) {
		t.Say("Done.")
		t.Complete()
	}
	b.await(ended(1))
	b.await(`document.querySelectorAll('article[data-turn] .progress')[1]?.textContent === 'Thinking…'`)
	close(steps)
}

// TestLongHistory begins at the newest entries, in mid-turn, and reads back to the first without a jump.
func TestLongHistory(t *testing.T) {
	s := serve(t, echo)
	l := s.Log("default/session/bay")
	const turns = 60
	for i := range turns {
		id := l.Append(&wirepb.Entry{Body: &wirepb.Entry_UserMessage{UserMessage: &wirepb.UserMessage{MessageId: fmt.Sprint(i), Text: fmt.Sprintf("Question %d", i)}}})
		for j := range 40 {
			l.Append(&wirepb.Entry{Turn: id, Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: fmt.Sprintf("%d.%d ", i, j)}}})
		}
		l.Append(&wirepb.Entry{Turn: id, Body: &wirepb.Entry_Terminal{Terminal: &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_COMPLETED}}})
	}
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	whole := `[...document.querySelectorAll('article .prose')].every((p) => p.textContent.trim().split(' ').length === 40)`
	b.await(`document.querySelectorAll('article').length === 12 && ` + whole) // 500 entries are 11 turns and most of one, which is read to its beginning
	b.await(`(() => { const s = document.getElementById('scroller'); return s.scrollHeight - s.scrollTop - s.clientHeight < 2; })()`)
	shown := eval[int](b, `document.querySelectorAll('article').length`)
	if shown == turns {
		t.Fatal("the page loaded everything at once")
	}
	b.js(`window.mark = document.querySelector('article'); document.getElementById('scroller').scrollTop = 0`)
	top := eval[float64](b, `mark.getBoundingClientRect().top`)
	b.js(`document.getElementById('earlier').click()`)
	b.await(fmt.Sprintf(`document.querySelectorAll('article').length > %d && %s`, shown, whole))
	if got := eval[float64](b, `mark.getBoundingClientRect().top`); got < top-80 || got > top+80 {
		t.Errorf("what was on top at %.0f px is at %.0f px after earlier messages came in above it", top, got)
	}
	for range turns {
		if eval[bool](b, `document.getElementById('earlier-line').hidden`) {
			break
		}
		n := eval[int](b, `document.querySelectorAll('article').length`)
		b.js(`document.getElementById('earlier').click()`)
		b.await(fmt.Sprintf(`document.querySelectorAll('article').length > %d && document.getElementById('earlier').textContent === 'Earlier messages'`, n))
	}
	got := eval[[]string](b, `[...document.querySelectorAll('article .said .text')].map((p) => p.textContent)`)
	if len(got) != turns || got[0] != "Question 0" || got[turns-1] != fmt.Sprintf("Question %d", turns-1) {
		t.Errorf("the page shows %d turns: %q", len(got), got)
	}
}

func TestHistoryReplaced(t *testing.T) {
	s := serve(t, echo)
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.write("Before")
	b.await(says(1, "You said: Before"))
	s.Log("default/session/bay").Replace()
	s.Cut()
	b.await(`document.querySelectorAll('article').length === 0`)
	b.write("After")
	b.await(says(1, "You said: After"))
}

func TestScrolling(t *testing.T) {
	next := make(chan struct{}, 1000)
	s := serve(t, paced(strings.Repeat(script+"\n\n", 40), next))
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	atBottom := `(() => { const s = document.getElementById('scroller'); return s.scrollHeight > s.clientHeight + 200 && s.scrollHeight - s.scrollTop - s.clientHeight < 2; })()`
	b.write("Tell me all.")
	release(next, 400)
	b.await(atBottom) // it follows
	b.js(`document.getElementById('scroller').scrollTop = 40`)
	b.await(`!document.getElementById('newest').hidden`)
	long := eval[int](b, answer(1)+`.length`)
	release(next, 100)
	b.await(fmt.Sprintf(`%s.length > %d`, answer(1), long+200))
	if got := eval[int](b, `document.getElementById('scroller').scrollTop`); got != 40 {
		t.Errorf("the reader was at 40 px and is at %d px", got)
	}
	b.do(chromedp.Click(chromedp.CSS("#newest")))
	b.await(atBottom + ` && document.getElementById('newest').hidden`)
	release(next, 100)
	b.await(atBottom)
}

func TestKeyboardOnly(t *testing.T) {
	next := make(chan struct{}, 100)
	s := serve(t, paced(script, next))
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.await(`document.activeElement.id === 'text'`)
	b.do(chromedp.KeyEvent("one"), chromedp.KeyEvent("\r", chromedp.KeyModifiers(kb.ModifierShift)), chromedp.KeyEvent("two"))
	b.await(`document.getElementById('text').value === 'one\ntwo'`)
	b.do(chromedp.KeyEvent("\r"))
	b.await(`document.querySelector('.said .text')?.textContent === 'one\ntwo' && document.activeElement.id === 'text'`)
	release(next, 3)
	b.await(says(1, words(3)))
	b.do(chromedp.KeyEvent(kb.Escape))
	b.await(`document.querySelector('.note .why')?.textContent === 'Stopped.'`)

	// Tab reaches everything, shows where it is, and comes round.
	reached := map[string]bool{}
	for range 20 {
		b.do(chromedp.KeyEvent(kb.Tab))
		at := eval[struct {
			Name    string
			Outline bool
		}](b, `(() => { const e = document.activeElement; return {
			name: e.id || e.getAttribute('aria-label') || e.tagName,
			outline: getComputedStyle(e).outlineStyle !== 'none' || getComputedStyle(e.parentElement).outlineStyle !== 'none',
		}; })()`)
		reached[at.Name] = true
		if at.Name != "BODY" && !at.Outline {
			t.Errorf("no visible focus on %s", at.Name)
		}
	}
	for _, name := range []string{"sessions", "new", "scroller", "text", "Copy this answer", "Try again with the same message"} {
		if !reached[name] {
			t.Errorf("Tab never reaches %s; it reaches %v", name, reached)
		}
	}

	b.js(`document.getElementById('sessions').focus()`)
	b.do(chromedp.KeyEvent("\r"))
	b.await(`document.getElementById('dialog').open && document.activeElement.id === 'open-name'`)
	b.do(chromedp.KeyEvent("a/b"), chromedp.KeyEvent("\r"))
	b.await(`document.getElementById('open-error').textContent.includes('no slash')`)
	b.do(chromedp.KeyEvent(kb.Escape))
	b.await(`!document.getElementById('dialog').open && document.activeElement.id === 'text'`)
}

func TestNames(t *testing.T) {
	s := serve(t, echo)
	b := open(t, browser(t), desktop, s.URL+"/")
	b.await(`/^#\/[a-z]+-[a-z]+-[a-z0-9]{4}$/.test(location.hash)`)
	first := eval[string](b, `location.hash`)
	b.write("Tides today")
	b.await(says(1, "You said: Tides today"))
	b.do(chromedp.Click(chromedp.CSS("#new")))
	b.await(fmt.Sprintf(`location.hash !== %q && document.querySelectorAll('article').length === 0`, first))
	b.do(chromedp.Click(chromedp.CSS("#sessions")))
	b.await(fmt.Sprintf(`document.querySelector('#recent a[href=%q] .title')?.textContent === 'Tides today'`, first))
	b.js(fmt.Sprintf(`document.querySelector('#recent a[href=%q]').click()`, first))
	b.await(says(1, "You said: Tides today") + ` && !document.getElementById('dialog').open`)
	b.do(chromedp.Click(chromedp.CSS("#sessions")), chromedp.SendKeys(chromedp.CSS("#open-name"), "größe & co\r"))
	b.await(`location.hash === '#/' + encodeURIComponent('größe & co') && document.getElementById('session-name').textContent === 'größe & co'`)
	b.write("hello")
	b.await(says(1, "You said: hello"))
	if got := len(s.Log("default/session/größe & co").Entries()); got == 0 {
		t.Error("the message did not reach the session of that name")
	}
	b.js(`history.back()`)
	b.await(says(1, "You said: Tides today"))
}

func TestHostileText(t *testing.T) {
	const evil = `<img src=x onerror="window.hit=1"><script>window.hit=1</script> [x](javascript:window.hit=1)`
	s := serve(t, func(t *wiretest.Turn) {
		t.Say(t.Text)
		t.Complete()
	})
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.expect("TrustedHTML")
	b.write(evil)
	b.await(ended(1))
	if got := eval[string](b, answer(1)); got != evil {
		t.Errorf("the answer is shown as %q", got)
	}
	if eval[bool](b, `Boolean(window.hit) || Boolean(document.querySelector('article img, article script, article a'))`) {
		t.Error("text became markup")
	}
	if got := eval[string](b, `(() => { try { document.createElement('p').innerHTML = '<b>x</b>'; return 'parsed'; } catch (e) { return e.name; } })()`); got != "TypeError" {
		t.Errorf("the HTML parser takes a string: %s", got)
	}
}

func TestCopy(t *testing.T) {
	s := serve(t, echo)
	fill(s.Log("default/session/tides"))
	b := open(t, browser(t), desktop, s.URL+"/#/tides")
	b.await(ended(3))
	b.js(`navigator.clipboard.writeText = async (text) => { window.copied = text; }`)
	b.js(`document.querySelector('button[data-copy=code]').click()`)
	b.await(`window.copied?.startsWith('func height') && window.copied.endsWith('}')`)
	b.await(`document.querySelector('button[data-copy=code]').textContent === 'Copied'`)
	b.js(`document.querySelector('button[data-copy=answer]').click()`)
	b.await(fmt.Sprintf(`window.copied === %q`, sampler))
}

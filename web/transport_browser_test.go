//go:build browser

package web_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport"
	"github.com/holdfast-ai/holdfast/transport/transporttest"
	"github.com/holdfast-ai/holdfast/web"
)

// TestOverTransport speaks to the real server of holdfast.v1, over objects in memory.
func TestOverTransport(t *testing.T) {
	const object = "default/session/bay"
	objects := transporttest.New()
	objects.OnSubmit = func(f *wirepb.Frame, reply func(*wirepb.Frame)) {
		turn := uint64(len(objects.Entries(object))) + 1
		objects.Append(object, &wirepb.Entry{Turn: turn, Body: &wirepb.Entry_UserMessage{
			UserMessage: &wirepb.UserMessage{MessageId: f.GetSubmit().MessageId, Text: f.GetSubmit().Text},
		}})
		reply(&wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Accepted{
			Accepted: &wirepb.Accepted{MessageId: f.GetSubmit().MessageId, Turn: turn},
		}})
	}
	stopped := make(chan uint64, 1)
	objects.OnStop = func(f *wirepb.Frame, reply func(*wirepb.Frame)) {
		stopped <- f.GetStop().Turn
		reply(&wirepb.Frame{Object: f.Object, Request: f.Request, Body: &wirepb.Frame_Stopping{Stopping: &wirepb.Stopping{Turn: f.GetStop().Turn}}})
	}
	say := func(turn uint64, text string) {
		objects.Append(object, &wirepb.Entry{Turn: turn, Body: &wirepb.Entry_Chunk{Chunk: &wirepb.Chunk{Text: text}}})
	}
	var server atomic.Pointer[transport.Server] // the one that serves now
	start := func() {
		s, err := transport.NewServer(transport.Options{Dispatcher: objects, Web: web.Handler(), DrainSpread: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		server.Store(s)
	}
	start()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { server.Load().ServeHTTP(w, r) }))
	t.Cleanup(func() {
		server.Load().Close()
		h.Close()
	})

	b := open(t, browser(t), desktop, h.URL+"/#/bay")
	b.expect("WebSocket connection to")
	b.write("When is slack water?")
	b.await(`document.querySelector('.said .text')?.textContent === 'When is slack water?' && !document.querySelector('.unsent')`)
	objects.SetStatus(object, &wirepb.Status{Turn: 1, Phase: wirepb.Phase_PHASE_LOADING, Done: 1, Total: 2})
	b.await(`document.querySelector('.progress').textContent === 'Loading the model 50 %'`)
	say(1, "Twice ")
	say(1, "a \"day\", ")
	b.await(says(1, `Twice a "day",`))

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := server.Load().Drain(ctx); err != nil { // the page hears Closing and 1012; new handshakes are refused
		t.Fatal(err)
	}
	say(1, "and at night.")
	b.await(`!document.getElementById('connection').hidden`)
	server.Load().Close()
	start()
	b.await(says(1, `Twice a "day", and at night.`))
	b.js(`document.getElementById('stop').click()`)
	if turn := <-stopped; turn != 1 {
		t.Errorf("Stop named turn %d, want 1", turn)
	}
	objects.Append(object, &wirepb.Entry{Turn: 1, Body: &wirepb.Entry_Terminal{Terminal: &wirepb.Terminal{Outcome: wirepb.Outcome_OUTCOME_STOPPED}}})
	b.await(`document.querySelector('.note .why')?.textContent === 'Stopped.'`)

	objects.Erase(object)
	b.await(`document.querySelectorAll('article').length === 0 && !document.getElementById('welcome').hidden`)

	// What retention has dropped is not asked for.
	for i := range 700 {
		objects.Append(object, &wirepb.Entry{Turn: uint64(i) + 1, Body: &wirepb.Entry_UserMessage{UserMessage: &wirepb.UserMessage{MessageId: fmt.Sprint(i), Text: fmt.Sprint(i)}}})
	}
	objects.Retain(object, 101)
	b.do(chromedp.Reload())
	b.await(`document.querySelectorAll('article').length === 500`)
	b.js(`document.getElementById('earlier').click()`)
	b.await(`document.querySelectorAll('article').length === 600 && document.getElementById('earlier-line').hidden`)
}

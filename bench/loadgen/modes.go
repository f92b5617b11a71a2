package main

import (
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// client is one open connection.
type client struct {
	ws *websocket.Conn
	a  adapter
	i  int
}

// open makes all connections, 32 at a time. Those that fail are counted and left out.
func open(c *config, subscribe bool) (clients []*client, bad int) {
	all := make([]*client, c.conns)
	var refused atomic.Int64
	var wg sync.WaitGroup
	gate := make(chan struct{}, 32)
	for i := range c.conns {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			ws, a, err := dial(c, i, subscribe)
			if err != nil {
				if refused.Add(1) <= 3 {
					log.Print(err)
				}
				return
			}
			all[i] = &client{ws, a, i}
		})
	}
	wg.Wait()
	for _, cl := range all {
		if cl != nil {
			clients = append(clients, cl)
		}
	}
	return clients, int(refused.Load())
}

// next reads one event.
func (cl *client) next() (event, error) {
	cl.ws.SetReadDeadline(time.Now().Add(30 * time.Second))
	mt, b, err := cl.ws.ReadMessage()
	if err != nil {
		return event{}, err
	}
	return cl.a.decode(mt, b), nil
}

// ask sends a message and reads until its event of kind k, giving every event to see.
func (cl *client) ask(id string, n, gapMS int, k kind, see func(event)) error {
	mt, b := cl.a.say(id, n, gapMS)
	if err := cl.ws.WriteMessage(mt, b); err != nil {
		return err
	}
	return cl.await(id, k, see)
}

// await reads until the event of kind k of a message.
func (cl *client) await(id string, k kind, see func(event)) error {
	for {
		e, err := cl.next()
		if err != nil {
			return err
		}
		if see != nil {
			see(e)
		}
		if e.kind == fail {
			return fmt.Errorf("message %s was refused", id)
		}
		if e.kind == k && e.id == id {
			return nil
		}
	}
}

// each runs f on every client and returns the number of errors.
func each(clients []*client, f func(cl *client) error) int64 {
	var errs atomic.Int64
	var wg sync.WaitGroup
	for _, cl := range clients {
		wg.Go(func() {
			if err := f(cl); err != nil {
				if errs.Add(1) <= 3 {
					log.Print(err)
				}
			}
		})
	}
	wg.Wait()
	return errs.Load()
}

// prime writes one durable message an object, so that creation is not part of the figures.
func prime(clients []*client) int64 {
	gate := make(chan struct{}, 32)
	return each(clients, func(cl *client) error {
		gate <- struct{}{}
		defer func() { <-gate }()
		return cl.ackOnly(fmt.Sprintf("prime-%d", cl.i), func() {})
	})
}

// ackOnly sends a message that asks for no token, calls acked when it is durable, and leaves no turn open behind it.
func (cl *client) ackOnly(id string, acked func()) error {
	ended := false
	err := cl.ask(id, 0, 0, ack, func(e event) { ended = ended || e.kind == end && e.id == id })
	if err != nil {
		return err
	}
	acked()
	if !cl.a.answers() || ended {
		return nil
	}
	return cl.await(id, end, nil)
}

// runAck: each connection has one message in flight; the figure is durable acknowledgements a second. Where a message is
// always a turn, the next one waits for its end, so that the figure is of whole turns: for Holdfast three commits each.
func runAck(c *config) (result, error) {
	clients, bad := open(c, true)
	errs := prime(clients)
	var latency samples
	var acked, left atomic.Int64
	left.Store(int64(c.total))
	from := time.Now().Add(c.warm)
	until := from.Add(c.dur)
	cpu := watchCPU(c.pid, from, until)
	errs += each(clients, func(cl *client) error {
		var ms []float64
		defer func() { latency.add(ms) }()
		for n := 0; time.Now().Before(until) && left.Add(-1) >= 0; n++ {
			start := time.Now()
			err := cl.ackOnly(fmt.Sprintf("a%d-%d", cl.i, n), func() {
				if now := time.Now(); start.After(from) && now.Before(until) {
					acked.Add(1)
					ms = append(ms, msSince(start, now))
				}
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	r := result{"acks": acked.Load(), "acks_per_s": int(float64(acked.Load()) / c.dur.Seconds()), "ack_ms": latency.quantiles(), "refused_dials": bad, "errors": errs}
	cpu.fill(r, c.pid, acked.Load())
	return r, nil
}

// runStream: each connection asks for one answer after the other; the figure is tokens a second and the gap between them.
func runStream(c *config) (result, error) {
	clients, bad := open(c, true)
	errs := prime(clients)
	var first, gaps samples
	var tokens atomic.Int64
	from := time.Now().Add(c.warm)
	until := from.Add(c.dur)
	cpu := watchCPU(c.pid, from, until)
	errs += each(clients, func(cl *client) error {
		var gapMS, firstMS []float64
		defer func() { gaps.add(gapMS); first.add(firstMS) }()
		// Start spread over one gap, as independent users do.
		time.Sleep(time.Duration(c.gapMS) * time.Millisecond * time.Duration(cl.i) / time.Duration(c.conns))
		for n := 0; time.Now().Before(until); n++ {
			id, start := fmt.Sprintf("s%d-%d", cl.i, n), time.Now()
			var last time.Time
			got := 0
			err := cl.ask(id, c.tokens, c.gapMS, end, func(e event) {
				if e.kind != token || e.id != id {
					return
				}
				now := time.Now()
				counted := now.After(from) && now.Before(until)
				switch {
				case counted && got == 0:
					firstMS = append(firstMS, msSince(start, now))
				case counted:
					gapMS = append(gapMS, msSince(last, now))
				}
				if counted {
					tokens.Add(int64(e.count))
				}
				last = now
				got += e.count
			})
			if err != nil {
				return err
			}
			if got != c.tokens {
				return fmt.Errorf("answer %s has %d tokens, want %d", id, got, c.tokens)
			}
		}
		return nil
	})
	r := result{"tokens": tokens.Load(), "tokens_per_s": int(float64(tokens.Load()) / c.dur.Seconds()), "gap_asked_ms": c.gapMS,
		"first_ms": first.quantiles(), "gap_ms": gaps.quantiles(), "refused_dials": bad, "errors": errs}
	cpu.fill(r, c.pid, tokens.Load())
	return r, nil
}

// runIdle opens sockets, each attached to an object with state, and reads what one costs the server.
func runIdle(c *config) (result, error) {
	before := rssKB(c.pid)
	clients, bad := open(c, true)
	errs := prime(clients)
	time.Sleep(c.settle)
	after := rssKB(c.pid)
	r := result{"refused_dials": bad, "errors": errs, "open": len(clients), "rss_before_kb": before, "rss_after_kb": after}
	if len(clients) > 0 {
		r["rss_kb_per_socket"] = float64(after-before) / float64(len(clients))
	}
	return r, nil
}

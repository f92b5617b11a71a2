package actors_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/actors/actorstest"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// Alarms are handled on another goroutine than the clock's: what they append tells when that has happened.

func TestAlarm(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	r := h.Attach(alice, page, nil)
	tell(t, h, page, "alarm a 10s", "alarm b 20s", "alarm c 15s")
	tell(t, h, page, "clear c", "alarm b 30s")
	h.Clock.Advance(9 * time.Second)
	h.Clock.Advance(time.Second)
	untilOffset(r, 1)
	h.Clock.Advance(10 * time.Second) // b was moved
	h.Clock.Advance(10 * time.Second)
	untilOffset(r, 2)
	if got := j.fired(); got != "a 0, b 0" {
		t.Errorf("fired: %s", got)
	}
	h.Clock.Advance(24 * time.Hour)
	tell(t, h, page, "append end")
	untilOffset(r, 3)
	if got := states(r); got != "alarm a, alarm b, end" {
		t.Errorf("the log says %s", got)
	}
}

func TestAlarmSetsItselfAgain(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	r := h.Attach(alice, page, nil)
	tell(t, h, page, "alarm again 1m")
	for i := range 5 {
		h.Clock.Advance(time.Minute)
		untilOffset(r, uint64(i+1))
	}
}

func TestAlarmOverRestarts(t *testing.T) {
	for name, restart := range map[string]func(*actorstest.Harness){
		"crash":   func(h *actorstest.Harness) { h.Crash() },
		"restart": func(h *actorstest.Harness) { h.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			j := newJournal()
			h := newHarness(t, j, nil)
			tell(t, h, page, "alarm a 5s")
			h.Clock.Step(10 * time.Second) // nothing runs meanwhile
			restart(h)
			r := h.Attach(alice, page, nil)
			untilOffset(r, 1)
			h.Crash()
			h.Clock.Advance(time.Hour)
			tell(t, h, page, "append end")
			if got := j.fired(); got != "a 0" {
				t.Errorf("fired: %s", got)
			}
		})
	}
}

// TestAlarmOvertaken lets alarms fall due while their object is busy with clearing one and moving the other.
func TestAlarmOvertaken(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	r := h.Attach(alice, page, nil)
	tell(t, h, page, "alarm a 10s", "alarm b 10s", "alarm c 10s")
	busy := h.Send(alice, say(page, "open in", "wait out", "clear a", "alarm b 1h"))
	<-j.door("in")
	h.Clock.Advance(10 * time.Second)
	for h.Host.Waiting(page) < 3 {
		runtime.Gosched() // delivered by the host's goroutine
	}
	for range 10 {
		h.Clock.Advance(time.Minute)
	}
	for range 100 {
		runtime.Gosched()
		if n := h.Host.Waiting(page); n > 4 { // a sweep too
			j.open("out")
			t.Fatalf("%d items wait for a busy object that has three alarms", n)
		}
	}
	j.open("out")
	h.Await(busy)
	untilOffset(r, 1)
	h.Clock.Advance(time.Hour)
	untilOffset(r, 2)
	if got := j.fired(); got != "c 0, b 0" {
		t.Errorf("fired: %s", got)
	}
}

// TestAlarmAndSteppedClock steps the wall clock back and forth: an alarm is neither early by it nor comes twice, and late
// by no more than a minute.
func TestAlarmAndSteppedClock(t *testing.T) {
	j := newJournal()
	h := newHarness(t, j, nil)
	r := h.Attach(alice, page, nil)
	tell(t, h, page, "alarm a 2h")
	h.Clock.Step(-time.Hour)
	for range 3 * 60 { // an hour longer by this clock
		if r.Pull(1 << 20); len(r.Entries) > 0 {
			t.Fatal("early")
		}
		h.Clock.Advance(time.Minute)
	}
	untilOffset(r, 1)
	tell(t, h, page, "alarm b 2h")
	h.Clock.Step(2 * time.Hour)
	h.Clock.Advance(time.Minute)
	untilOffset(r, 2)
	h.Clock.Step(-2 * time.Hour)
	h.Clock.Advance(4 * time.Hour)
	tell(t, h, page, "append end")
	if got := j.fired(); got != "a 0, b 0" {
		t.Errorf("fired: %s", got)
	}
}

// TestFailingAlarmIsNeverDropped lets a handler fail over and over: the alarm comes again, later each time.
func TestFailingAlarmIsNeverDropped(t *testing.T) {
	for _, key := range []string{"bad", "worse"} {
		t.Run(key, func(t *testing.T) {
			j := newJournal()
			h := newHarness(t, j, func(o *actors.Options) { o.AlarmRetry = time.Second })
			r := h.Attach(alice, page, nil)
			tell(t, h, page, "alarm "+key+" 1s")
			h.Clock.Advance(time.Second)
			for i := range 10 {
				h.AwaitMetric("holdfast_actors_alarms_failed_total", float64(i+1))
				if i == 9 {
					j.heal()
				}
				due := h.AwaitAlarmAfter(h.Clock.Now())
				h.Clock.Advance(due.Sub(h.Clock.Now()))
			}
			r.Until("the alarm", func(e *wirepb.Entry) bool { return e.GetState().Key == "alarm "+key })
			if len(r.Entries) != 1 {
				t.Errorf("a failed handler left something: %s", states(r))
			}
			want := fmt.Sprint(key, " 0")
			for i := range 10 {
				want += fmt.Sprint(", ", key, " ", i+1)
			}
			if got := j.fired(); got != want {
				t.Errorf("fired %s", got)
			}
		})
	}
}

func TestManyAlarms(t *testing.T) {
	const n = 100
	j := newJournal()
	h := newHarness(t, j, func(o *actors.Options) { o.AlarmBatch = 4 })
	for i := range n {
		tell(t, h, fmt.Sprint("default/journal/", i), fmt.Sprintf("alarm a%d %ds", i, 1+i%3))
	}
	h.Clock.Advance(3 * time.Second)
	for i := range n {
		r := h.Attach(alice, fmt.Sprint("default/journal/", i), nil)
		untilOffset(r, 1)
		r.Close()
	}
	h.AwaitMetric("holdfast_actors_alarms_total", n)
}

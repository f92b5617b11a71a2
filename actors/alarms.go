package actors

import (
	"sync"
	"time"

	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/storage"
)

// alarms fires what is due. The durable index in storage is the truth; here is only what is on its way, so that nothing
// is fired twice at once, and one timer for the next. scan runs on the host's one housekeeping goroutine.
type alarms struct {
	host *Host

	mu struct {
		sync.Mutex
		onWay   map[alarmKey]struct{} // handed to an object that has not answered
		resting map[alarmKey]struct{} // could not be handed over; left alone for a while
		timer   clock.Timer
		at      time.Time // when timer fires
	}
}

type alarmKey struct {
	address storage.Address
	key     string
	due     int64
}

// maxAlarmWait bounds the trust in a timer: after a step of the wall clock an alarm is late by no more.
const maxAlarmWait = time.Minute

func newAlarms(h *Host) *alarms {
	s := &alarms{host: h}
	s.mu.onWay = make(map[alarmKey]struct{})
	s.mu.resting = make(map[alarmKey]struct{})
	return s
}

// expect makes sure that the index is read at due.
func (s *alarms) expect(due time.Time) {
	now := s.host.o.Clock.Now()
	wait := min(max(due.Sub(now), 0), maxAlarmWait)
	if wait == 0 {
		s.host.poke(s.host.pokeAlarms)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.timer != nil && !s.mu.at.After(now.Add(wait)) && s.mu.at.After(now) {
		return
	}
	if s.mu.timer != nil {
		s.mu.timer.Stop()
	}
	s.mu.at = now.Add(wait)
	s.mu.timer = s.host.o.Clock.AfterFunc(wait, func() { s.host.poke(s.host.pokeAlarms) })
	if !due.After(s.host.o.Clock.Now()) {
		s.host.poke(s.host.pokeAlarms) // the clock was stepped since wait was taken
	}
}

func (s *alarms) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.timer != nil {
		s.mu.timer.Stop()
	}
}

// scan hands over what is due, as far as AlarmBatch allows, and sets the timer.
func (s *alarms) scan() {
	h := s.host
	s.mu.Lock()
	limit := h.o.AlarmBatch + len(s.mu.resting) + 1 // what may be in our way and one more
	s.mu.Unlock()
	now := h.o.Clock.Now() // read once: what falls due from here on is for the next scan
	due, err := h.o.Store.DueAlarms(now, limit)
	if err != nil {
		h.log.Error("reading due alarms failed", "error", err)
		s.expect(now.Add(maxAlarmWait))
		return
	}
	for _, d := range due {
		if !s.fire(d) {
			break
		}
	}
	next, ok, err := h.o.Store.NextAlarm()
	switch {
	case err != nil:
		h.log.Error("reading the next alarm failed", "error", err)
		s.expect(now.Add(maxAlarmWait))
	case ok && next.After(now):
		s.expect(next)
	case ok:
		// Overdue, so on its way or resting. Whatever ends that pokes; what lies behind it is looked for later.
		s.expect(now.Add(maxAlarmWait))
	}
}

// fire hands one alarm over unless it is on its way; it returns false when too many are.
func (s *alarms) fire(d storage.DueAlarm) bool {
	k := alarmKey{d.Address, d.Key, d.Due.UnixMilli()}
	s.mu.Lock()
	_, onWay := s.mu.onWay[k]
	_, resting := s.mu.resting[k]
	if onWay || resting {
		s.mu.Unlock()
		return true
	}
	if len(s.mu.onWay) >= s.host.o.AlarmBatch {
		s.mu.Unlock()
		return false
	}
	s.mu.onWay[k] = struct{}{}
	s.mu.Unlock()
	done := func(err error) { s.finished(k, err) }
	if err := s.host.send(ID(d.Address), &firedAlarm{key: d.Key, due: d.Due, done: done}); err != nil {
		done(err)
	}
	return true
}

// finished makes room. After an error the alarm is still in the index: it is left alone for a while.
func (s *alarms) finished(k alarmKey, err error) {
	h := s.host
	s.mu.Lock()
	delete(s.mu.onWay, k)
	if err != nil {
		s.mu.resting[k] = struct{}{}
	}
	s.mu.Unlock()
	if err == nil {
		h.poke(h.pokeAlarms)
		return
	}
	h.log.Warn("alarm not delivered", "object", k.address.String(), "alarm", k.key, "error", err)
	h.after(h.o.AlarmRetry*16, func() {
		s.mu.Lock()
		delete(s.mu.resting, k)
		s.mu.Unlock()
		h.poke(h.pokeAlarms)
	})
	h.poke(h.pokeAlarms)
}

// backoff doubles base with each failure up to most.
func backoff(base, most time.Duration, failures int) time.Duration {
	for ; failures > 0 && base < most; failures-- {
		base *= 2
	}
	return min(base, most)
}

package actors

import "github.com/holdfast-ai/holdfast/proto/statepb"

// merge joins what a handler did to the next commit. A handler that wrote nothing waits for what it may have seen: the
// commits on their way, or nothing (invariant 2).
func (a *Activation) merge(c *Context) {
	for _, cancel := range c.cancels {
		if e := a.effects[cancel.key]; e != nil {
			e.cancel(cancel.cause)
		}
	}
	if !c.writes.empty() {
		if a.pending == nil {
			a.pending = &group{}
		}
		a.pending.merge(&c.writes)
		a.next += uint64(len(c.writes.frames))
		if c.writes.meta != nil {
			a.meta = c.writes.meta
		}
		if a.alarms != nil {
			a.alarms = mergeMap(a.alarms, c.writes.alarms)
		}
	}
	for _, e := range c.starts {
		a.effects[e.key] = e
	}
	for _, o := range c.outputs {
		a.gate(o)
	}
}

// gate lets o out when everything merged so far is durable.
func (a *Activation) gate(o output) {
	switch {
	case a.pending != nil:
		a.pending.outputs = append(a.pending.outputs, o)
	case a.inflight != nil:
		a.inflight.outputs = append(a.inflight.outputs, o)
	case o.run != nil:
		o.run()
	}
}

// flush hands what is pending to storage unless a commit is in flight, and ends an activation that waited for the
// last one.
func (a *Activation) flush() {
	if a.ended || a.inflight != nil {
		return
	}
	if a.pending == nil {
		if a.stopping != nil {
			a.end()
		} else if a.host.isDraining() {
			a.rest(true)
		}
		return
	}
	g := a.pending
	a.inflight, a.pending = g, nil
	b := a.stored.NewBatch()
	g.fill(b)
	g.began = a.host.o.Clock.Now()
	a.stored.Commit(b, func(err error) { a.post(commitDone{err}) })
}

// committed is told how the commit in flight ended.
func (a *Activation) committed(err error) {
	g := a.inflight
	a.inflight = nil
	if err != nil {
		a.host.metrics.failed.Inc()
		a.log.Error("commit failed", "error", err)
		lost := a.pending
		a.pending = nil
		failure := commitFailure(err)
		g.fail(failure)
		if lost != nil {
			lost.fail(failure)
		}
		a.stop(err)
		return
	}
	a.host.metrics.commits.Inc()
	a.host.metrics.commitTime.Observe(a.host.o.Clock.Now().Sub(g.began).Seconds())
	a.place.succeeded()
	if g.meta != nil {
		a.durable = g.meta
	}
	if len(g.frames) > 0 {
		a.place.feed.publish(g.first, g.frames)
	}
	g.release()
	if due, ok := g.nextAlarm(); ok {
		a.host.alarms.expect(due)
	}
}

// alarm hands a due alarm to the behaviour, unless it was cleared or moved since storage was asked.
func (a *Activation) alarm(f *firedAlarm) {
	al, err := a.loadAlarm(f.key)
	if err != nil {
		f.done(err)
		a.stop(err)
		return
	}
	if al == nil || al.DueUnixMs != f.due.UnixMilli() {
		a.gate(output{run: func() { f.done(nil) }, fail: f.done})
		return
	}
	a.host.metrics.alarms.Inc()
	ev := Alarm{Key: al.Key, Due: f.due, Attempts: int(al.Attempts)}
	c := &Context{a: a, alarm: al.Key}
	c.writes.first = a.next
	err = a.call(c, ev)
	if err == nil {
		if _, ok := c.writes.alarms[al.Key]; !ok {
			c.ClearAlarm(al.Key)
		}
		c.a = nil
		a.merge(c)
		a.gate(output{run: func() { f.done(nil) }, fail: f.done})
		return
	}
	c.a = nil
	a.host.metrics.alarmsFailed.Inc()
	a.log.Warn("alarm failed", "alarm", al.Key, "attempts", al.Attempts+1, "error", err)
	a.postpone(al, f)
	if !isRefusal(err) {
		a.stop(err)
	}
}

// postpone sets a failed alarm again, later each time. It is never dropped.
func (a *Activation) postpone(al *statepb.Alarm, f *firedAlarm) {
	wait := backoff(a.host.o.AlarmRetry, maxAlarmRetry, int(al.Attempts))
	again := &statepb.Alarm{
		Key: al.Key, DueUnixMs: a.host.o.Clock.Now().Add(wait).UnixMilli(), Attempts: al.Attempts + 1, System: al.System,
	}
	c := &Context{a: a}
	c.writes.first = a.next
	set(&c.writes.alarms, al.Key, again)
	c.a = nil
	a.merge(c)
	a.gate(output{run: func() { f.done(nil) }, fail: f.done})
}

// loadAlarm returns the alarm as merged so far.
func (a *Activation) loadAlarm(key string) (*statepb.Alarm, error) {
	if a.alarms == nil {
		all, err := a.stored.Alarms()
		if err != nil {
			return nil, err
		}
		m := make(map[string]*statepb.Alarm, len(all))
		for _, al := range all {
			m[al.Key] = al
		}
		for _, g := range []*group{a.inflight, a.pending} {
			if g != nil {
				mergeMap(m, g.alarms)
			}
		}
		a.alarms = m
	}
	return a.alarms[key], nil
}

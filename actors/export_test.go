package actors

// Held is what an object keeps for its readers: entries of its ring, their bytes, and readers that wait to be woken.
func (h *Host) Held(object string) (entries, bytes, waiting int) {
	id, err := ParseID(object)
	if err != nil {
		panic(err)
	}
	h.mu.Lock()
	p := h.mu.places[id]
	h.mu.Unlock()
	if p == nil {
		return 0, 0, 0
	}
	p.feed.mu.Lock()
	defer p.feed.mu.Unlock()
	return len(p.feed.mu.ring), p.feed.mu.bytes, len(p.feed.mu.hungry)
}

// Places counts the addresses that this process knows of.
func (h *Host) Places() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.places)
}

// Waiting counts what waits in the control lane of an object.
func (h *Host) Waiting(object string) int {
	id, err := ParseID(object)
	if err != nil {
		panic(err)
	}
	p, err := h.acquire(id)
	if err != nil {
		panic(err)
	}
	defer h.release(p)
	p.mu.Lock()
	a := p.mu.act
	p.mu.Unlock()
	if a == nil {
		return 0
	}
	a.mail.mu.Lock()
	defer a.mail.mu.Unlock()
	return a.mail.mu.control.len()
}

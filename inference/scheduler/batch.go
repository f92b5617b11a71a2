package scheduler

import (
	"fmt"

	"github.com/holdfast-ai/holdfast/inference"
)

// batcher decides which rows a step computes and knows what each slot's key-value cache holds. It is pure: it does no
// I/O, starts nothing and knows neither runs nor models. A step goes
//
//	rows := b.plan()
//	// … compute rows …
//	b.commit() // or b.discard() if they were not computed
//	// for each slot with b.slots[i].wantsLogits: b.append(i, token), or b.release(i, keep)
//
// Invariants of a slot (see valid):
//  1. The cache holds tokens[:computed] at positions 0 to computed-1, all of them written for the occupant or taken over
//     from an earlier one of the same scope.
//  2. A busy slot has computed < len(tokens) between steps, except after a commit and before append or release.
//  3. Only an idle slot with a scope keeps computed tokens.
type batcher struct {
	slots       []slot
	maxRows     int
	maxLogits   int
	prefillRows int // a step, while another slot decodes

	first    int    // slot that plan serves first
	releases uint64 // stamps for the least recently used slot
	rows     []inference.Row
	order    []int // scratch of share
}

// slot is the state of one slot. The owner of the batcher sets blocked; all else is the batcher's.
type slot struct {
	busy     bool
	blocked  bool // its consumer is behind: it sits out
	scope    string
	tokens   []uint32
	computed int
	used     uint64

	planned     int  // rows in the current step
	wantsLogits bool // in the current step
}

func newBatcher(slots, maxRows, maxLogits, prefillRows int) *batcher {
	return &batcher{
		slots: make([]slot, slots), maxRows: maxRows, maxLogits: maxLogits, prefillRows: prefillRows,
		rows: make([]inference.Row, 0, maxRows), order: make([]int, 0, slots),
	}
}

func (s *slot) pending() int { return len(s.tokens) - s.computed }

// decoding reports whether only the newest token is missing, so that one row gives the next one.
func (s *slot) decoding() bool { return s.pending() == 1 }

// idle reports whether place may be called.
func (b *batcher) idle() bool {
	for i := range b.slots {
		if !b.slots[i].busy {
			return true
		}
	}
	return false
}

// place gives an idle slot to a new occupant and returns how many of its tokens the slot's cache holds already. The
// occupant's tokens now belong to the batcher.
//
// A slot whose former occupant had the same scope is preferred if at least half of what it holds can be reused, so that
// a short common beginning does not cost a longer conversation its cache; else the least recently used slot is taken.
func (b *batcher) place(tokens []uint32, scope string) (index, reused int) {
	index = -1
	better := func(i, common int) bool {
		if index < 0 {
			return true
		}
		return common > reused || common == reused && b.slots[i].used < b.slots[index].used
	}
	oldest, oldestCommon := -1, 0
	for i := range b.slots {
		s := &b.slots[i]
		if s.busy {
			continue
		}
		common := s.common(tokens, scope)
		if oldest < 0 || s.used < b.slots[oldest].used {
			oldest, oldestCommon = i, common
		}
		if common > 0 && 2*common >= s.computed && better(i, common) {
			index, reused = i, common
		}
	}
	if index < 0 {
		index, reused = oldest, oldestCommon
	}
	s := &b.slots[index]
	*s = slot{busy: true, scope: scope, tokens: tokens, computed: reused, used: s.used}
	return index, reused
}

// common is how many of tokens the idle slot holds for scope. The last token is never among them, for its logits are
// not kept.
func (s *slot) common(tokens []uint32, scope string) int {
	if scope == "" || s.scope != scope {
		return 0
	}
	n, limit := 0, min(s.computed, len(tokens)-1)
	for n < limit && s.tokens[n] == tokens[n] {
		n++
	}
	return n
}

// plan returns the rows of the next step, grouped by slot, or none if no slot can go on. The slice is valid until
// the next plan.
//
// Each slot gets one row first, in turn if there are more slots than rows or logits; what is left is shared among
// those that prefill, at most prefillRows in all while any slot decodes.
func (b *batcher) plan() []inference.Row {
	rows, logits, decoding := b.maxRows, b.maxLogits, false
	start, skipped := b.first, -1
	for n := range b.slots {
		i := (start + n) % len(b.slots)
		s := &b.slots[i]
		s.planned, s.wantsLogits = 0, false
		if !s.busy || s.blocked {
			continue
		}
		decoding = decoding || s.decoding()
		if rows == 0 || s.decoding() && logits == 0 {
			if skipped < 0 {
				skipped = i
			}
			continue
		}
		s.planned = 1
		rows--
		if s.decoding() {
			s.wantsLogits = true
			logits--
		}
	}
	if skipped >= 0 {
		b.first = skipped
	}
	b.share(rows, logits, decoding)
	return b.emit()
}

// share distributes rows among the slots that prefill: equal parts, except that nobody gets more than it needs.
func (b *batcher) share(rows, logits int, decoding bool) {
	b.order = b.order[:0]
	for i := range b.slots {
		if s := &b.slots[i]; s.planned == 1 && !s.decoding() {
			b.order = append(b.order, i)
			for j := len(b.order) - 1; j > 0 && b.slots[b.order[j]].pending() < b.slots[b.order[j-1]].pending(); j-- {
				b.order[j], b.order[j-1] = b.order[j-1], b.order[j]
			}
		}
	}
	if decoding {
		rows = min(rows, max(0, b.prefillRows-len(b.order)))
	}
	for k, i := range b.order { // the one that needs least first, so that what it leaves goes to the others
		s := &b.slots[i]
		left := len(b.order) - k
		n := min((rows+left-1)/left, s.pending()-s.planned)
		if n == s.pending()-s.planned && logits == 0 {
			n-- // the last row is of use only with logits
		}
		s.planned += n
		rows -= n
		if s.planned == s.pending() {
			s.wantsLogits = true
			logits--
		}
	}
}

// emit writes the planned rows.
func (b *batcher) emit() []inference.Row {
	b.rows = b.rows[:0]
	for i := range b.slots {
		s := &b.slots[i]
		for n := range s.planned {
			p := s.computed + n
			b.rows = append(b.rows, inference.Row{
				Slot: uint32(i), Position: uint32(p), Token: s.tokens[p],
				Logits: s.wantsLogits && n == s.planned-1,
			})
		}
	}
	return b.rows
}

// commit records that the planned rows have been computed.
func (b *batcher) commit() {
	for i := range b.slots {
		b.slots[i].computed += b.slots[i].planned
		b.slots[i].planned = 0
	}
}

// discard records that they have not, or not wholly. What was computed before stays valid.
func (b *batcher) discard() {
	for i := range b.slots {
		b.slots[i].planned, b.slots[i].wantsLogits = 0, false
	}
}

// append adds the token that was chosen for a slot.
func (b *batcher) append(i int, token uint32) {
	b.slots[i].tokens = append(b.slots[i].tokens, token)
	b.slots[i].wantsLogits = false
}

// release makes a slot idle. Its cache stays of use to its scope, unless keep is false.
func (b *batcher) release(i int, keep bool) {
	b.releases++
	s := &b.slots[i]
	scope, tokens, computed := s.scope, s.tokens, s.computed
	*s = slot{used: b.releases}
	if keep && scope != "" {
		s.scope, s.tokens, s.computed = scope, tokens[:computed], computed
	} else {
		s.used = 0 // nothing to lose: take it first
	}
}

// forget drops what an idle slot holds.
func (b *batcher) forget(i int) { b.slots[i] = slot{} }

// valid returns an error if an invariant is broken.
func (b *batcher) valid() error {
	for i := range b.slots {
		s := &b.slots[i]
		switch {
		case s.computed < 0 || s.computed > len(s.tokens):
			return fmt.Errorf("slot %d: %d of %d tokens computed", i, s.computed, len(s.tokens))
		case s.busy && s.pending() == 0:
			return fmt.Errorf("slot %d: busy with nothing to compute", i)
		case !s.busy && s.scope == "" && s.computed > 0:
			return fmt.Errorf("slot %d: idle without a scope, yet holds %d tokens", i, s.computed)
		case s.planned > 0 && (!s.busy || s.planned > s.pending()):
			return fmt.Errorf("slot %d: %d rows planned for %d tokens", i, s.planned, s.pending())
		}
	}
	return nil
}

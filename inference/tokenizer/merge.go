package tokenizer

import "slices"

// merger turns the bytes of one piece into tokens: of all neighbours that may merge, those with the lowest rank do, the
// leftmost first, until none is left. It only holds memory between calls.
type merger struct {
	ids   []uint32
	ranks []uint32 // ranks[i]: of the merge of ids[i] with its right neighbour, or none
	left  []int32
	right []int32
	heap  []uint64 // rank<<32 | position
}

const (
	// shortPiece is where searching all neighbours for every merge stops to be faster than keeping a heap of them.
	shortPiece = 48
	// keepPiece bounds the memory that a merger keeps between calls.
	keepPiece = 1 << 14
)

func (m *merger) small() bool { return cap(m.ids) <= keepPiece }

// encode appends the tokens of piece to dst.
func (m *merger) encode(dst []uint32, t *Tokenizer, piece string) []uint32 {
	m.ids = slices.Grow(m.ids[:0], len(piece))
	for i := range len(piece) {
		if id := t.bytes[piece[i]]; id != none {
			m.ids = append(m.ids, id)
		}
	}
	switch {
	case len(m.ids) < 2:
		return append(dst, m.ids...)
	case len(m.ids) <= shortPiece:
		return append(dst, m.mergeShort(t)...)
	default:
		return m.mergeLong(dst, t)
	}
}

// mergeShort merges in place and returns what is left of ids.
func (m *merger) mergeShort(t *Tokenizer) []uint32 {
	ids, ranks := m.ids, m.ranks[:0]
	for i := range len(ids) - 1 {
		ranks = append(ranks, t.rank(ids[i], ids[i+1]))
	}
	m.ranks = ranks
	for {
		best, at := uint32(none), 0
		for i, rank := range ranks {
			if rank < best {
				best, at = rank, i
			}
		}
		if best == none {
			return ids
		}
		ids[at] = t.merges[pair(ids[at], ids[at+1])].token
		ids = append(ids[:at+1], ids[at+2:]...)
		ranks = append(ranks[:at], ranks[at+1:]...)
		if at > 0 {
			ranks[at-1] = t.rank(ids[at-1], ids[at])
		}
		if at < len(ranks) {
			ranks[at] = t.rank(ids[at], ids[at+1])
		}
	}
}

// mergeLong keeps the tokens in a linked list and possible merges in a heap. An entry of the heap is stale, and passed
// over, if the position has merged since: a rank is of one pair only, so comparing ranks finds out.
func (m *merger) mergeLong(dst []uint32, t *Tokenizer) []uint32 {
	n := len(m.ids)
	m.ranks, m.left = slices.Grow(m.ranks[:0], n), slices.Grow(m.left[:0], n)
	m.right, m.heap = slices.Grow(m.right[:0], n), slices.Grow(m.heap[:0], n)
	for i := range n {
		rank := uint32(none)
		if i+1 < n {
			rank = t.rank(m.ids[i], m.ids[i+1])
		}
		m.ranks = append(m.ranks, rank)
		m.left, m.right = append(m.left, int32(i-1)), append(m.right, int32(i+1))
		if rank != none {
			m.heap = append(m.heap, uint64(rank)<<32|uint64(i))
		}
	}
	m.heapify()
	for len(m.heap) > 0 {
		entry := m.pop()
		at := int32(entry & 0xffffffff)
		if m.ranks[at] != uint32(entry>>32) {
			continue
		}
		gone := m.right[at]
		m.ids[at] = t.merges[pair(m.ids[at], m.ids[gone])].token
		m.ranks[gone] = none
		m.right[at] = m.right[gone]
		if next := m.right[at]; int(next) < n {
			m.left[next] = at
		}
		m.consider(t, at, n)
		if m.left[at] >= 0 {
			m.consider(t, m.left[at], n)
		}
	}
	for i := int32(0); int(i) < n; i = m.right[i] {
		dst = append(dst, m.ids[i])
	}
	return dst
}

// consider looks up the merge of the token at position at with its right neighbour.
func (m *merger) consider(t *Tokenizer, at int32, n int) {
	m.ranks[at] = none
	if next := m.right[at]; int(next) < n {
		if rank := t.rank(m.ids[at], m.ids[next]); rank != none {
			m.ranks[at] = rank
			m.push(uint64(rank)<<32 | uint64(at))
		}
	}
}

func (t *Tokenizer) rank(left, right uint32) uint32 {
	if merge, ok := t.merges[pair(left, right)]; ok {
		return merge.rank
	}
	return none
}

// The heap is container/heap's, without its interface calls: they took a third of the time for long pieces.

func (m *merger) heapify() {
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
}

func (m *merger) push(entry uint64) {
	h := append(m.heap, entry)
	m.heap = h
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if h[parent] <= h[i] {
			return
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
}

func (m *merger) pop() uint64 {
	top, last := m.heap[0], len(m.heap)-1
	m.heap[0] = m.heap[last]
	m.heap = m.heap[:last]
	m.down(0)
	return top
}

func (m *merger) down(i int) {
	h := m.heap
	for {
		least := 2*i + 1
		if least >= len(h) {
			return
		}
		if least+1 < len(h) && h[least+1] < h[least] {
			least++
		}
		if h[i] <= h[least] {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

package scheduler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/holdfast-ai/holdfast/inference"
)

// TestBatch runs the scripts in testdata/batch. Tokens are letters. Commands:
//
//	new slots=N rows=N logits=N prefill=N
//	place tokens=abc [scope=s]     a new occupant
//	step [n=N] [abort]             plan and commit (or discard); slots with logits get the token x
//	block slot=N, unblock slot=N   the consumer falls behind, catches up
//	release slot=N [drop]
func TestBatch(t *testing.T) {
	datadriven.Walk(t, "testdata/batch", func(t *testing.T, path string) {
		var b *batcher
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := runBatchCommand(t, &b, d)
			if err := b.valid(); err != nil {
				return out + "INVALID: " + err.Error()
			}
			return out
		})
	})
}

func runBatchCommand(t *testing.T, b **batcher, d *datadriven.TestData) string {
	number := func(name string) (n int) {
		d.ScanArgs(t, name, &n)
		return n
	}
	switch d.Cmd {
	case "new":
		*b = newBatcher(number("slots"), number("rows"), number("logits"), number("prefill"))
		return ""
	case "place":
		var text, scope string
		d.ScanArgs(t, "tokens", &text)
		d.MaybeScanArgs(t, "scope", &scope)
		if !(*b).idle() {
			return "no slot is idle\n"
		}
		i, reused := (*b).place(letters(text), scope)
		return fmt.Sprintf("slot %d, %d reused\n", i, reused)
	case "step":
		n := 1
		d.MaybeScanArgs(t, "n", &n)
		var out strings.Builder
		for range n {
			out.WriteString(describe((*b).plan()))
			if d.HasArg("abort") {
				(*b).discard()
				continue
			}
			commitAndAppend(*b)
		}
		return out.String()
	case "block", "unblock":
		(*b).slots[number("slot")].blocked = d.Cmd == "block"
	case "release":
		(*b).release(number("slot"), !d.HasArg("drop"))
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
	return ""
}

func letters(text string) (tokens []uint32) {
	for _, r := range text {
		tokens = append(tokens, uint32(r))
	}
	return tokens
}

// describe writes rows as slot@first position:tokens; a ! follows a token whose logits are wanted.
func describe(rows []inference.Row) string {
	if len(rows) == 0 {
		return "nothing\n"
	}
	var out strings.Builder
	for i, r := range rows {
		if i == 0 || rows[i-1].Slot != r.Slot {
			if i > 0 {
				out.WriteByte(' ')
			}
			fmt.Fprintf(&out, "%d@%d:", r.Slot, r.Position)
		}
		out.WriteRune(rune(r.Token))
		if r.Logits {
			out.WriteByte('!')
		}
	}
	return out.String() + "\n"
}

func commitAndAppend(b *batcher) {
	b.commit()
	for i := range b.slots {
		if b.slots[i].wantsLogits {
			b.append(i, 'x')
		}
	}
}

// TestBatchProperties drives a batcher at random: its limits hold, everybody gets on, and rows follow one another.
func TestBatchProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 9).Draw(t, "slots")
		rows := rapid.IntRange(1, 20).Draw(t, "rows")
		logits := rapid.IntRange(1, 9).Draw(t, "logits")
		prefill := rapid.IntRange(1, rows).Draw(t, "prefill")
		b := newBatcher(slots, rows, logits, prefill)
		starved := make([]int, slots) // steps that a slot sat in vain
		next := make([]int, slots)    // position that comes next
		t.Repeat(map[string]func(*rapid.T){
			"place": func(t *rapid.T) {
				if !b.idle() {
					return
				}
				tokens := letters(rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 60, -1).Draw(t, "tokens"))
				scope := rapid.SampledFrom([]string{"", "s", "t"}).Draw(t, "scope")
				i, reused := b.place(tokens, scope)
				if scope == "" && reused > 0 {
					t.Fatalf("%d tokens reused without a scope", reused)
				}
				next[i], starved[i] = reused, 0
			},
			"release": func(t *rapid.T) {
				if i := rapid.IntRange(0, slots-1).Draw(t, "slot"); b.slots[i].busy {
					b.release(i, rapid.Bool().Draw(t, "keep"))
				}
			},
			"block": func(t *rapid.T) {
				i := rapid.IntRange(0, slots-1).Draw(t, "slot")
				b.slots[i].blocked, starved[i] = !b.slots[i].blocked && b.slots[i].busy, 0
			},
			"step": func(t *rapid.T) { checkStep(t, b, next, starved, rapid.IntRange(0, 4).Draw(t, "abort") == 0) },
			"":     func(t *rapid.T) { mustBeValid(t, b) },
		})
	})
}

func mustBeValid(t *rapid.T, b *batcher) {
	if err := b.valid(); err != nil {
		t.Fatal(err)
	}
}

func checkStep(t *rapid.T, b *batcher, next, starved []int, abort bool) {
	before := make([]slot, len(b.slots))
	copy(before, b.slots)
	rows := b.plan()
	mustBeValid(t, b)
	var wanted, prefilling, decoding int
	served := map[uint32]int{}
	for _, r := range rows {
		s := before[r.Slot]
		if want := next[r.Slot] + served[r.Slot]; int(r.Position) != want || r.Token != s.tokens[want] {
			t.Fatalf("row %+v, want position %d", r, want)
		}
		if last := int(r.Position) == len(s.tokens)-1; r.Logits != last {
			t.Fatalf("row %+v of %d tokens", r, len(s.tokens))
		}
		if r.Logits {
			wanted++
		}
		if served[r.Slot]++; s.decoding() {
			decoding++
		} else {
			prefilling++
		}
	}
	if len(rows) > b.maxRows || wanted > b.maxLogits {
		t.Fatalf("%d rows and %d logits of at most %d and %d", len(rows), wanted, b.maxRows, b.maxLogits)
	}
	able := 0
	for i, s := range before {
		switch n := served[uint32(i)]; {
		case n > 0 && (!s.busy || s.blocked):
			t.Fatalf("slot %d is served though it is idle or blocked", i)
		case n > 1 && s.decoding():
			t.Fatalf("slot %d decodes %d tokens", i, n)
		case s.busy && !s.blocked && n == 0:
			if starved[i]++; starved[i] > len(before) {
				t.Fatalf("slot %d starves", i)
			}
		default:
			starved[i] = 0
		}
		if s.busy && !s.blocked {
			able++
		}
	}
	if able > 0 && len(rows) == 0 {
		t.Fatal("an idle step though a slot is able")
	}
	// Every prefilling slot gets a row whatever the cap, so that none starves.
	if decoding > 0 && prefilling > max(b.prefillRows, able-decoding) {
		t.Fatalf("%d rows of prefill beside %d of decode", prefilling, decoding)
	}
	if abort {
		b.discard()
		return
	}
	commitAndAppend(b)
	for i, n := range served {
		next[i] += n
	}
}

package ws

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestTextCheck: however a message is cut, the verdict is that of the whole, and never later than necessary to be sure.
func TestTextCheck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		message := []byte(rapid.String().Draw(t, "text"))
		if rapid.Bool().Draw(t, "damage") {
			at := rapid.IntRange(0, len(message)).Draw(t, "at")
			message = append(message[:at:at], append(rapid.SliceOfN(rapid.Byte(), 1, 3).Draw(t, "bytes"), message[at:]...)...)
		}
		var check textCheck
		ok := true
		for at := 0; ok && at < len(message); {
			at += rapid.IntRange(1, len(message)-at).Draw(t, "piece")
			ok = check.feed(message[:at], false)
			if !ok && utf8.Valid(message) {
				t.Fatalf("refused %q after %d bytes", message, at)
			}
			if ok && len(message[:at])-check.checked >= utf8.UTFMax {
				t.Fatalf("%d bytes of %q are not checked yet", at-check.checked, message[:at])
			}
		}
		if ok = ok && check.feed(message, true); ok != utf8.Valid(message) {
			t.Fatalf("%q: %v", message, ok)
		}
	})
}

// TestScanner: it finds a short close frame among others, however the bytes are cut, and nothing else.
func TestScanner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		short := false
		for range rapid.IntRange(0, 8).Draw(t, "frames") {
			op := rapid.SampledFrom([]Opcode{0, Text, Binary, Close, Ping, Pong}).Draw(t, "op")
			n := rapid.SampledFrom([]int{0, 1, 2, 125, 126, 300, 65535, 65536}).Draw(t, "n")
			if op >= Close {
				n = min(n, MaxControl)
			}
			head := AppendHeader(nil, op, n)
			masked := rapid.Bool().Draw(t, "masked")
			if masked {
				head[1] |= 0x80
				head = append(head, 8, 1, 8, 1) // looks like a short close frame
			}
			stream = append(append(stream, head...), bytes.Repeat([]byte{0x88, 1}, n)[:n]...)
			short = short || op == Close && n == 1
		}
		var s scanner
		for len(stream) > 0 {
			n := rapid.IntRange(1, len(stream)).Draw(t, "piece")
			s.scan(stream[:n])
			stream = stream[n:]
		}
		if s.shortClose != short {
			t.Fatalf("found %v, want %v", s.shortClose, short)
		}
	})
}

func TestAppendClose(t *testing.T) {
	long := strings.Repeat("ä", 100)
	got := AppendClose(nil, CloseNormal, long)
	if len(got) > 2+MaxControl || got[1] > MaxControl || !utf8.Valid(got[4:]) || len(got) < 2+MaxControl-2 {
		t.Errorf("%d bytes: %q", len(got), got)
	}
	if got := AppendClose(nil, CloseNoStatus, "x"); !bytes.Equal(got, []byte{0x88, 0}) {
		t.Errorf("no status: %x", got)
	}
	if got := AppendClose([]byte("a"), 4400, "bad"); string(got) != "a\x88\x05\x11\x30bad" {
		t.Errorf("%q", got)
	}
}

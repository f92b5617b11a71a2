package ws

import (
	"encoding/binary"
	"unicode/utf8"
)

// Opcode is the kind of a WebSocket frame.
type Opcode byte

// Opcodes of RFC 6455, section 5.2.
const (
	Text   Opcode = 1
	Binary Opcode = 2
	Close  Opcode = 8
	Ping   Opcode = 9
	Pong   Opcode = 10
)

// Close codes of RFC 6455, section 7.4.1, and of the IANA registry.
const (
	CloseNormal        = 1000
	CloseGoingAway     = 1001
	CloseProtocolError = 1002
	CloseNoStatus      = 1005 // never sent: a close frame without a payload
	CloseInvalidText   = 1007
	CloseTooBig        = 1009
	CloseInternal      = 1011
	CloseRestart       = 1012
	CloseTryAgain      = 1013
	CloseTimeout       = 3008
)

// MaxControl is the largest payload of a control frame.
const MaxControl = 125

const finBit = 0x80

// AppendHeader appends the header of an unfragmented frame of a server whose payload of n bytes follows.
func AppendHeader(dst []byte, op Opcode, n int) []byte {
	b0 := finBit | byte(op)
	switch {
	case n <= 125:
		return append(dst, b0, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, b0, 126), uint16(n))
	default:
		return binary.BigEndian.AppendUint64(append(dst, b0, 127), uint64(n))
	}
}

// AppendMessage appends a whole frame.
func AppendMessage(dst []byte, op Opcode, payload []byte) []byte {
	return append(AppendHeader(dst, op, len(payload)), payload...)
}

// AppendClose appends a close frame. A reason that is too long is cut at a character; CloseNoStatus has no payload.
func AppendClose(dst []byte, code int, reason string) []byte {
	if code == CloseNoStatus {
		return AppendHeader(dst, Close, 0)
	}
	if max := MaxControl - 2; len(reason) > max {
		for max > 0 && !utf8.RuneStart(reason[max]) {
			max--
		}
		reason = reason[:max]
	}
	dst = AppendHeader(dst, Close, 2+len(reason))
	dst = binary.BigEndian.AppendUint16(dst, uint16(code))
	return append(dst, reason...)
}

// scanner follows the frame headers of a byte stream. It exists to see what gorilla hides: that a close frame had a
// payload of one byte.
type scanner struct {
	head       [14]byte
	have       uint8  // bytes of head
	skip       uint64 // bytes of the payload that are still to come
	shortClose bool
}

func (s *scanner) scan(p []byte) {
	for len(p) > 0 {
		if s.skip > 0 {
			n := min(uint64(len(p)), s.skip)
			s.skip -= n
			p = p[n:]
			continue
		}
		s.head[s.have] = p[0]
		s.have++
		p = p[1:]
		if s.have < 2 {
			continue
		}
		size, at := uint64(s.head[1]&0x7f), uint8(2)
		switch size {
		case 126:
			at += 2
			size = uint64(binary.BigEndian.Uint16(s.head[2:]))
		case 127:
			at += 8
			size = binary.BigEndian.Uint64(s.head[2:])
		}
		if s.head[1]&0x80 != 0 {
			at += 4
		}
		if s.have < at {
			continue
		}
		if Opcode(s.head[0]&0x0f) == Close && size == 1 {
			s.shortClose = true
		}
		s.skip, s.have = size, 0
	}
}

// textCheck checks that text is UTF-8 while it arrives in pieces.
type textCheck struct {
	checked int // bytes of the message that are known to be whole characters
}

// feed looks at a message as far as it has come. last says that it is complete.
func (t *textCheck) feed(message []byte, last bool) bool {
	rest := message[t.checked:]
	whole := len(rest)
	if !last {
		whole = wholeRunes(rest)
	}
	if !utf8.Valid(rest[:whole]) {
		return false
	}
	t.checked += whole
	return true
}

// wholeRunes returns the length of p without a character at its end that may go on in the next piece.
func wholeRunes(p []byte) int {
	for i := len(p) - 1; i >= 0 && i >= len(p)-utf8.UTFMax; i-- {
		if utf8.RuneStart(p[i]) {
			if utf8.FullRune(p[i:]) {
				return len(p)
			}
			return i
		}
	}
	return len(p)
}

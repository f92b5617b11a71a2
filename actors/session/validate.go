package session

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

const (
	maxMessageID = 128
	maxModel     = 128
	maxSystem    = 64 << 10
	maxStops     = 8
	maxStop      = 256
	maxTokens    = 1 << 20
	maxTopK      = 1 << 20
)

// validate checks everything about a Submit that does not depend on the session.
func (o *Options) validate(m *wirepb.Submit) error {
	if err := line("message_id", m.GetMessageId(), 1, maxMessageID); err != nil {
		return err
	}
	switch text := m.GetText(); {
	case text == "":
		return proto.Errorf(proto.CodeInvalidArgument, "text is empty")
	case len(text) > o.MaxText:
		e := proto.Errorf(proto.CodeTooLarge, "text has %d bytes, more than %d", len(text), o.MaxText)
		e.Hint = "send a shorter message"
		return e
	case !utf8.ValidString(text):
		return proto.Errorf(proto.CodeInvalidArgument, "text is not valid UTF-8")
	}
	return validateOptions(m.GetOptions())
}

func validateOptions(o *wirepb.Options) error {
	if o == nil {
		return nil
	}
	if err := line("options.model", o.Model, 0, maxModel); err != nil {
		return err
	}
	if t := o.Temperature; t != nil && !between(*t, 0, 5) {
		return proto.Errorf(proto.CodeInvalidArgument, "options.temperature is not between 0 and 5")
	}
	if p := o.TopP; p != nil && !between(*p, 0, 1) {
		return proto.Errorf(proto.CodeInvalidArgument, "options.top_p is not between 0 and 1")
	}
	if k := o.TopK; k != nil && *k > maxTopK {
		return proto.Errorf(proto.CodeInvalidArgument, "options.top_k is above %d", maxTopK)
	}
	if n := o.MaxTokens; n != nil && (*n == 0 || *n > maxTokens) {
		return proto.Errorf(proto.CodeInvalidArgument, "options.max_tokens is not between 1 and %d", maxTokens)
	}
	if len(o.Stop) > maxStops {
		return proto.Errorf(proto.CodeInvalidArgument, "options.stop has %d strings, more than %d", len(o.Stop), maxStops)
	}
	for _, s := range o.Stop {
		if s == "" || len(s) > maxStop || !utf8.ValidString(s) {
			return proto.Errorf(proto.CodeInvalidArgument, "a string in options.stop is not 1 to %d bytes of UTF-8", maxStop)
		}
	}
	if len(o.System) > maxSystem || !utf8.ValidString(o.System) {
		return proto.Errorf(proto.CodeInvalidArgument, "options.system is not at most %d bytes of UTF-8", maxSystem)
	}
	return nil
}

func between(v float32, low, high float64) bool {
	f := float64(v)
	return !math.IsNaN(f) && f >= low && f <= high
}

// line checks a short string without control characters.
func line(field, s string, least, most int) error {
	switch {
	case len(s) < least:
		return proto.Errorf(proto.CodeInvalidArgument, "%s is empty", field)
	case len(s) > most:
		return proto.Errorf(proto.CodeInvalidArgument, "%s has %d bytes, more than %d", field, len(s), most)
	case !utf8.ValidString(s):
		return proto.Errorf(proto.CodeInvalidArgument, "%s is not valid UTF-8", field)
	case strings.ContainsFunc(s, unicode.IsControl):
		return proto.Errorf(proto.CodeInvalidArgument, "%s contains a control character", field)
	}
	return nil
}

// bodyHash identifies what a Submit asks for, its message id aside. Absent and zero fields differ. It is on disk, so
// its encoding is fixed here and not left to a library.
func bodyHash(m *wirepb.Submit) []byte {
	h := sha256.New()
	str(h, m.GetText())
	o := m.GetOptions()
	str(h, o.GetModel())
	num(h, o.GetMaxTokens(), o != nil && o.MaxTokens != nil)
	num(h, math.Float32bits(o.GetTemperature()), o != nil && o.Temperature != nil)
	num(h, math.Float32bits(o.GetTopP()), o != nil && o.TopP != nil)
	num(h, o.GetTopK(), o != nil && o.TopK != nil)
	num(h, o.GetSeed(), o != nil && o.Seed != nil)
	num(h, uint32(len(o.GetStop())), true)
	for _, s := range o.GetStop() {
		str(h, s)
	}
	str(h, o.GetSystem())
	return h.Sum(nil)
}

func str(h hash.Hash, s string) {
	num(h, uint64(len(s)), true)
	h.Write([]byte(s))
}

func num[T uint32 | uint64](h hash.Hash, v T, present bool) {
	var b [9]byte
	if present {
		b[0] = 1
	}
	binary.BigEndian.PutUint64(b[1:], uint64(v))
	h.Write(b[:])
}

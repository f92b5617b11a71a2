package echo

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-ai/holdfast/inference"
)

// Limits of a script, so that a directive cannot exhaust the machine that it is to test.
const (
	maxTokens     = 10_000_000
	maxTokenBytes = 1 << 20
	maxQueue      = 10_000
)

// Script is what the model does.
type Script struct {
	Tokens     int
	Bytes      int    // each token is padded to this
	Seed       uint64 // 0: "tok<i> "
	Text       string // if set, the answer, a token for each word
	Gap, First time.Duration
	Queue      int

	// Instead of this token, counted from 1 so that 0 is never: FailAt 1 fails before anything.
	FailAt, StallAt, CrashAt int
	Err                      error // with FailAt
	Tool, Arguments          string

	words []string // of Text
}

// errModel is the error of the model itself.
var errModel = errors.New("echo: the script says fail")

var errorsByName = map[string]error{
	"model":       errModel,
	"overloaded":  fmt.Errorf("echo: the script says: %w", inference.ErrOverloaded),
	"unavailable": fmt.Errorf("echo: the script says: %w", inference.ErrModelUnavailable),
	"overflow":    fmt.Errorf("echo: the script says: %w", inference.ErrContextOverflow),
}

// parse returns the script for a message.
func parse(message string, normal Script) (Script, error) {
	trimmed := strings.TrimSpace(message)
	if rest, ok := strings.CutPrefix(trimmed, "/echo"); ok && (rest == "" || rest[0] == ' ' || rest[0] == '\n' || rest[0] == '\t') {
		return parseDirective(rest)
	}
	if strings.HasPrefix(strings.ToLower(trimmed), "slow") {
		return Script{Tokens: 12, Gap: 100 * time.Millisecond}, nil
	}
	return normal, nil
}

// complete fills in what follows from the rest.
func (s Script) complete() Script {
	if s.Text != "" {
		s.words = strings.SplitAfter(s.Text, " ")
		s.Tokens = len(s.words)
	}
	if s.FailAt > 0 && s.Err == nil {
		s.Err = errModel
	}
	if s.Tool != "" && s.Arguments == "" {
		s.Arguments = "{}"
	}
	return s
}

func parseDirective(rest string) (Script, error) {
	s := Script{Tokens: 3}
	bad := func(format string, args ...any) (Script, error) {
		return Script{}, fmt.Errorf("echo: %w: %s", inference.ErrInvalidRequest, fmt.Sprintf(format, args...))
	}
	for {
		rest = strings.TrimLeft(rest, " \t\n")
		if rest == "" {
			break
		}
		if text, ok := strings.CutPrefix(rest, "text="); ok {
			if text == "" {
				return bad("text= without a text")
			}
			s.Text = text
			break
		}
		word := rest
		if i := strings.IndexAny(rest, " \t\n"); i >= 0 {
			word, rest = rest[:i], rest[i:]
		} else {
			rest = ""
		}
		key, value, _ := strings.Cut(word, "=")
		set, ok := keys[key]
		if !ok {
			return bad("the script has no key %q; see the package comment of echo", key)
		}
		if err := set(&s, value); err != nil {
			return bad("%s=%s: %v", key, value, err)
		}
	}
	return s.complete(), nil
}

// keys of a directive. text is not among them since it takes the rest of the message.
var keys = map[string]func(s *Script, value string) error{
	"n":     func(s *Script, v string) (err error) { s.Tokens, err = number(v, maxTokens); return },
	"bytes": func(s *Script, v string) (err error) { s.Bytes, err = number(v, maxTokenBytes); return },
	"queue": func(s *Script, v string) (err error) { s.Queue, err = number(v, maxQueue); return },
	"fail":  func(s *Script, v string) error { return place(&s.FailAt, v) },
	"stall": func(s *Script, v string) error { return place(&s.StallAt, v) },
	"crash": func(s *Script, v string) error { return place(&s.CrashAt, v) },
	"gap":   func(s *Script, v string) error { return duration(&s.Gap, v) },
	"first": func(s *Script, v string) error { return duration(&s.First, v) },
	"seed": func(s *Script, v string) (err error) {
		s.Seed, err = strconv.ParseUint(v, 10, 64)
		return err
	},
	"error": func(s *Script, v string) error {
		err, ok := errorsByName[v]
		if !ok {
			return fmt.Errorf("the errors are model, overloaded, unavailable and overflow")
		}
		s.Err = err
		return nil
	},
	"tool": func(s *Script, v string) error {
		if v == "" {
			return fmt.Errorf("a tool has a name")
		}
		s.Tool = v
		return nil
	},
	"args": func(s *Script, v string) error {
		if !json.Valid([]byte(v)) {
			return fmt.Errorf("not JSON")
		}
		s.Arguments = v
		return nil
	},
}

func number(v string, limit int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > limit {
		return 0, fmt.Errorf("not a number from 0 to %d", limit)
	}
	return n, nil
}

// place reads a token's index, from 0, as a place, from 1.
func place(p *int, v string) error {
	n, err := number(v, maxTokens)
	*p = n + 1
	return err
}

func duration(p *time.Duration, v string) error {
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 || d > time.Hour {
		return fmt.Errorf("not a duration from 0 to 1h, such as 20ms")
	}
	*p = d
	return nil
}

// token returns the text of token i.
func (s *Script) token(i int) string {
	var text string
	switch {
	case s.Text != "":
		text = s.words[i]
	case s.Seed != 0:
		text = word(s.Seed, uint64(i))
	default:
		text = "tok" + strconv.Itoa(i) + " "
	}
	if pad := s.Bytes - len(text); pad > 0 {
		text = strings.TrimSuffix(text, " ") + strings.Repeat(".", pad) + " "
	}
	return text
}

// word returns a word that looks random and depends on seed and i alone; some have letters of several bytes.
func word(seed, i uint64) string {
	const letters = "etaoinshrdlu"
	x := seed*0x9E3779B97F4A7C15 + i + 1
	next := func(n uint64) uint64 { // splitmix64
		x += 0x9E3779B97F4A7C15
		z := (x ^ x>>30) * 0xBF58476D1CE4E5B9
		z = (z ^ z>>27) * 0x94D049BB133111EB
		return (z ^ z>>31) % n
	}
	var b strings.Builder
	for range 1 + next(9) {
		b.WriteByte(letters[next(uint64(len(letters)))])
	}
	switch next(16) {
	case 0:
		b.WriteString("é")
	case 1:
		b.WriteString(" 🙂")
	}
	b.WriteByte(' ')
	return b.String()
}

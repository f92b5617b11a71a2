package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/holdfast-ai/holdfast/inference"
)

// Sentinel errors.
var (
	ErrUnknownFamily = errors.New("chat template family not known")
	ErrNoControl     = errors.New("vocabulary lacks a control token")
)

// Vocabulary is what a tokenizer must implement besides inference.Tokenizer to be used with a Template.
type Vocabulary interface {
	inference.Tokenizer
	// Control returns the control token of that name.
	Control(name string) (uint32, bool)
}

// Template is the frame of one family. It is immutable and safe for concurrent use.
type Template struct {
	family string
	// version counts changes of what Render gives: a Plan made before a change must not be mistaken for one after.
	version int

	begin                 string // control token in front of everything, or ""
	open, opened, closed  string // control tokens around the role and behind the content; opened may be ""
	afterRole, afterClose string // text
	trim                  bool   // whether white space around the content is left out
	defaultSystem         string // system message of a conversation that does not begin with one, or ""
}

func families() []Template {
	return []Template{
		{
			family: "chatml", version: 1,
			open: "<|im_start|>", closed: "<|im_end|>", afterRole: "\n", afterClose: "\n",
		},
		{
			family: "llama3", version: 1,
			begin: "<|begin_of_text|>",
			open:  "<|start_header_id|>", opened: "<|end_header_id|>", closed: "<|eot_id|>", afterRole: "\n\n", trim: true,
		},
		{
			family: "qwen2", version: 1,
			open: "<|im_start|>", closed: "<|im_end|>", afterRole: "\n", afterClose: "\n",
			defaultSystem: "You are a helpful assistant.",
		},
		{
			family: "smollm2", version: 1,
			open: "<|im_start|>", closed: "<|im_end|>", afterRole: "\n", afterClose: "\n",
			defaultSystem: "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
		},
	}
}

// Families lists the names that ForFamily knows, sorted.
func Families() []string {
	var names []string
	for _, t := range families() {
		names = append(names, t.family)
	}
	slices.Sort(names)
	return names
}

// ForFamily returns the template of a family of models, or an error that wraps ErrUnknownFamily.
func ForFamily(family string) (*Template, error) {
	for _, t := range families() {
		if t.family == family {
			return &t, nil
		}
	}
	return nil, fmt.Errorf("%w: %q; known are %s", ErrUnknownFamily, family, strings.Join(Families(), ", "))
}

// Name is the family and the version of its rendering, such as "smollm2/1".
func (t *Template) Name() string { return fmt.Sprintf("%s/%d", t.family, t.version) }

// Render appends the tokens of msgs and of the beginning of the assistant's answer to dst. t must implement Vocabulary.
// Errors wrap ErrNoControl if the frame needs a control token that t lacks, and inference.ErrInvalidRequest if msgs
// cannot be rendered; dst is then returned as it was.
func (t *Template) Render(dst []uint32, tok inference.Tokenizer, msgs []inference.Message) ([]uint32, error) {
	v, ok := tok.(Vocabulary)
	if !ok {
		return dst, fmt.Errorf("template %s: %w: a tokenizer of type %T has none", t.Name(), ErrNoControl, tok)
	}
	for i, m := range msgs {
		switch m.Role {
		case inference.System, inference.User, inference.Assistant:
		default:
			return dst, fmt.Errorf("template %s: %w: message %d has the role %q", t.Name(), inference.ErrInvalidRequest, i, m.Role)
		}
	}
	w := writer{v: v, tokens: dst}
	w.control(t.begin)
	if t.defaultSystem != "" && len(msgs) > 0 && msgs[0].Role != inference.System {
		t.message(&w, inference.Message{Role: inference.System, Content: t.defaultSystem})
	}
	for _, m := range msgs {
		t.message(&w, m)
	}
	t.header(&w, inference.Assistant)
	w.flush()
	if w.missing != "" {
		return dst, fmt.Errorf("template %s: %w: %q; is it of another family than the model?", t.Name(), ErrNoControl, w.missing)
	}
	return w.tokens, nil
}

func (t *Template) message(w *writer, m inference.Message) {
	t.header(w, m.Role)
	if t.trim {
		m.Content = strings.TrimFunc(m.Content, isSpace)
	}
	w.text(m.Content)
	w.control(t.closed)
	w.text(t.afterClose)
}

// isSpace is what Jinja's trim takes for white space: Unicode's, and the four separators of ASCII.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// header opens a message. An answer continues behind the assistant's.
func (t *Template) header(w *writer, role inference.Role) {
	w.control(t.open)
	w.text(string(role))
	w.control(t.opened)
	w.text(t.afterRole)
}

// writer gathers the text between two control tokens, since a model has seen it tokenized as one.
type writer struct {
	v       Vocabulary
	tokens  []uint32
	pending []string
	missing string // the first control token that was not there
}

func (w *writer) text(s string) { w.pending = append(w.pending, s) }

func (w *writer) control(name string) {
	if name == "" {
		return
	}
	w.flush()
	id, ok := w.v.Control(name)
	if !ok && w.missing == "" {
		w.missing = name
	}
	w.tokens = append(w.tokens, id)
}

func (w *writer) flush() {
	w.tokens = w.v.Encode(w.tokens, strings.Join(w.pending, ""))
	w.pending = w.pending[:0]
}

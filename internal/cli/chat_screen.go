package cli

import (
	"io"
	"strings"
	"sync"
)

// screen is where a chat shows itself. Only the goroutine of the chat calls it.
type screen interface {
	// Said shows what a person wrote, in the history or on another device.
	Said(text string)
	// Text shows the next piece of an answer, and End its end.
	Text(piece string)
	End()
	// Note shows one line that is neither: a lost connection, why an answer ended.
	Note(line string)
	// Status shows what is waited for, until anything else is shown; "" takes it away.
	Status(line string)
}

// plain is the screen when the output is not a terminal: stdout gets the answers and nothing else.
type plain struct {
	out, err io.Writer
	column   bool // the cursor is not at the start of a line of out
}

func (p *plain) Said(string) {}

func (p *plain) Text(piece string) {
	piece = clean(piece)
	if piece == "" {
		return
	}
	p.column = !strings.HasSuffix(piece, "\n")
	_, _ = io.WriteString(p.out, piece) // a closed pipe ends the process by SIGPIPE
}

func (p *plain) End() {
	if p.column {
		_, _ = io.WriteString(p.out, "\n")
	}
	p.column = false
}

func (p *plain) Note(line string) { _, _ = io.WriteString(p.err, "holdfast: "+line+"\n") }

func (p *plain) Status(string) {}

const (
	styleOff    = "\x1b[0m"
	styleDim    = "\x1b[2m"
	styleBold   = "\x1b[1m"
	eraseLine   = "\r\x1b[2K"
	promptPlain = "> "
)

// console is the screen on a terminal in raw mode. While the prompt shows, whole lines go through the line editor,
// which takes the prompt away and draws it again; while an answer streams, text goes straight out.
type console struct {
	out    io.Writer // raw: a line ends in \r\n
	editor io.Writer // the line editor
	color  bool

	prompting bool
	column    bool   // out: the cursor is not at the start of a line
	held      string // while prompting: the line that is not whole yet
	status    bool   // a status line is on the screen
	answered  bool   // there was text since the last prompt
}

func (c *console) style(code, s string) string {
	if !c.color {
		return s
	}
	return code + s + styleOff
}

// Prompting says whether the line editor shows its prompt from now on.
func (c *console) Prompting(on bool) {
	c.Status("")
	if on {
		c.End()
		c.space()
	}
	c.prompting = on
	c.flush()
}

// space puts air between an answer and what follows.
func (c *console) space() {
	if c.answered {
		c.write("\n")
	}
	c.answered = false
}

func (c *console) Said(text string) {
	c.End()
	c.space()
	for _, line := range strings.Split(clean(text), "\n") {
		c.write(c.style(styleBold, promptPlain+line) + "\n")
	}
}

func (c *console) Text(piece string) {
	c.answered = true
	c.write(clean(piece))
}

func (c *console) End() {
	c.Status("")
	if c.column || c.held != "" {
		c.write("\n")
	}
}

func (c *console) Note(line string) {
	c.End()
	c.write(c.style(styleDim, "["+line+"]") + "\n")
	c.answered = true
}

func (c *console) Status(line string) {
	if c.prompting || (line == "" && !c.status) || c.column {
		return
	}
	s := ""
	if line != "" {
		s = c.style(styleDim, line)
	}
	_, _ = io.WriteString(c.out, eraseLine+s)
	c.status = line != ""
}

// write shows s. Failures to write to a terminal have nowhere to be reported.
func (c *console) write(s string) {
	if s == "" {
		return
	}
	if c.prompting {
		c.held += s
		if i := strings.LastIndexByte(c.held, '\n'); i >= 0 {
			_, _ = io.WriteString(c.editor, c.held[:i+1])
			c.held = c.held[i+1:]
		}
		return
	}
	if c.status {
		c.Status("")
	}
	c.column = !strings.HasSuffix(s, "\n")
	_, _ = io.WriteString(c.out, strings.ReplaceAll(s, "\n", "\r\n"))
}

// flush writes what was held back for the sake of the prompt.
func (c *console) flush() {
	if c.prompting || c.held == "" {
		return
	}
	s := c.held
	c.held = ""
	c.write(s)
}

// keys reads a terminal in raw mode for as long as the program runs: Ctrl-C is told at once, whatever the chat does;
// the rest waits for the line editor, so that nothing typed during an answer is lost. Read is the editor's.
type keys struct {
	interrupt chan<- struct{}
	mu        struct {
		sync.Mutex
		buffered  []byte
		prompting bool
		err       error
	}
	more *sync.Cond
}

func newKeys(interrupt chan<- struct{}) *keys {
	k := &keys{interrupt: interrupt}
	k.more = sync.NewCond(&k.mu)
	return k
}

// pump copies from in until it ends. A read of a terminal cannot be broken off, so the goroutine that runs pump on
// one lives until the process ends.
func (k *keys) pump(in io.Reader) {
	buf := make([]byte, 1024)
	for {
		n, err := in.Read(buf)
		k.take(buf[:n], err)
		if err != nil {
			return
		}
	}
}

const (
	keyInterrupt = 3  // Ctrl-C
	keyKillLine  = 21 // Ctrl-U: what the editor does at a Ctrl-C
)

func (k *keys) take(b []byte, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range b {
		if c != keyInterrupt {
			k.mu.buffered = append(k.mu.buffered, c)
			continue
		}
		select {
		case k.interrupt <- struct{}{}:
		default: // one is pending
		}
		if k.mu.prompting {
			k.mu.buffered = append(k.mu.buffered, keyKillLine)
		} else {
			k.mu.buffered = nil // typed ahead of an answer that is not wanted
		}
	}
	if err != nil {
		k.mu.err = err
	}
	k.more.Broadcast()
}

// Prompting says whether the editor shows its prompt.
func (k *keys) Prompting(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.prompting = on
}

// Close lets a waiting Read go.
func (k *keys) Close() { k.take(nil, io.EOF) }

func (k *keys) Read(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.mu.buffered) == 0 {
		if k.mu.err != nil {
			return 0, k.mu.err
		}
		k.more.Wait()
	}
	n := copy(p, k.mu.buffered)
	k.mu.buffered = k.mu.buffered[n:]
	return n, nil
}

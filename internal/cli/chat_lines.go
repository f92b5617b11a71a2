package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"sync"

	"golang.org/x/term"
)

// pipeLines takes a message from each line of a pipe or file.
type pipeLines struct {
	next chan line
	ctx  context.Context
	in   *bufio.Reader
	once sync.Once
}

// newPipeLines reads in until it ends; a read that blocks at the end of ctx is left to the end of the process.
func newPipeLines(ctx context.Context, in io.Reader) *pipeLines {
	return &pipeLines{next: make(chan line), ctx: ctx, in: bufio.NewReader(in)}
}

func (p *pipeLines) Ask()              { p.once.Do(func() { go p.read() }) }
func (p *pipeLines) Next() <-chan line { return p.next }
func (p *pipeLines) Done()             {}

func (p *pipeLines) read() {
	for {
		text, err := p.in.ReadString('\n')
		l := line{text: text}
		if text == "" {
			l.err = err
		}
		select {
		case p.next <- l:
		case <-p.ctx.Done():
			return
		}
		if l.err != nil {
			return
		}
	}
}

// editorLines takes messages from a person at a terminal.
type editorLines struct {
	editor  *term.Terminal
	keys    *keys
	console *console
	size    func() (width, height int, err error)

	ask  chan struct{}
	next chan line
	done chan struct{}
}

// start runs the editor until Close.
func (e *editorLines) start() {
	e.ask, e.next, e.done = make(chan struct{}), make(chan line, 1), make(chan struct{})
	go func() {
		defer close(e.done)
		for range e.ask {
			text, err := e.readMessage()
			e.next <- line{text, err}
		}
	}()
}

// Close ends the editor and waits for it.
func (e *editorLines) Close() {
	e.keys.Close()
	close(e.ask)
	<-e.done
}

func (e *editorLines) Ask() {
	if width, height, err := e.size(); err == nil && width > 0 {
		_ = e.editor.SetSize(width, height) // it then wraps wrongly, no more
	}
	e.console.Prompting(true)
	e.keys.Prompting(true)
	e.ask <- struct{}{}
}

func (e *editorLines) Next() <-chan line { return e.next }

func (e *editorLines) Done() {
	e.keys.Prompting(false)
	e.console.Prompting(false)
}

// readMessage reads a line, or all the lines of a paste.
func (e *editorLines) readMessage() (string, error) {
	var pasted strings.Builder
	for {
		text, err := e.editor.ReadLine()
		pasted.WriteString(text)
		if !errors.Is(err, term.ErrPasteIndicator) {
			return pasted.String(), err
		}
		pasted.WriteByte('\n')
	}
}

package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport/client"
)

const (
	defaultServer = "http://127.0.0.1:8420"
	chatTail      = 500 // entries of history that are read; an answer has about one a token
	maxMessage    = 1 << 20
)

type chatFlags struct {
	server, session, message string
	oneShot                  bool // message was given
}

// newChat makes the command "chat".
func newChat() *cobra.Command {
	var f chatFlags
	cmd := &cobra.Command{
		Use:   "chat",
		Short: "Talk to a model in the terminal",
		Long: `Talk to a model that a holdfast server runs.

The conversation is kept by the server under its session's name: --session NAME goes on with it, from here or from any
other device. A lost connection or a restarted server is waited for; the answer goes on where it was.

Ctrl-C while an answer comes stops the answer. At the prompt, Ctrl-C twice or Ctrl-D leaves.

When the output is not a terminal, it gets the answers alone; when the input is not, each of its lines is a message.`,
		Example: `  holdfast chat
  holdfast chat --session taxes
  holdfast chat --message "Name three tides." > answer.txt
  git diff | holdfast chat --message -`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.oneShot = cmd.Flags().Changed("message")
			return runChat(cmd, f)
		},
	}
	cmd.Flags().StringVar(&f.server, "server", defaultServer, "address of the server")
	cmd.Flags().StringVar(&f.session, "session", "", "name of the session; a new one without it")
	cmd.Flags().StringVar(&f.message, "message", "", "send one message, print its answer and exit; - reads it from the input")
	return cmd
}

func runChat(cmd *cobra.Command, f chatFlags) error {
	server, err := parseServer(f.server)
	if err != nil {
		return err
	}
	if f.session == "" {
		if f.session, err = newSessionName(rand.Reader); err != nil {
			return err
		}
	} else if err := checkSessionName(f.session); err != nil {
		return err
	}
	message, err := oneShotMessage(f, cmd.InOrStdin())
	if err != nil {
		return err
	}
	// Ctrl-C is the chat's own: it must not end the command's context.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	defer cancel(nil)
	ctrlC := make(chan struct{}, 1)
	defer onSignals(ctrlC, cancel)()

	l := openLink(ctx, linkOptions{server: server, session: f.session, tail: chatTail})
	defer l.Close()
	c := &chat{link: l, interrupts: ctrlC, newID: client.NewMessageID}
	switch in, out, ok := terminal(cmd); {
	case f.oneShot:
		err = chatOnce(ctx, c, cmd, message)
	case ok:
		err = chatTerminal(ctx, c, ctrlC, in, out, f.session, server)
	default:
		c.ownOnly = true
		c.screen = &plain{out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()}
		c.lines = newPipeLines(ctx, cmd.InOrStdin())
		if err = c.open(ctx); err == nil {
			err = c.converse(ctx)
		}
	}
	return explain(err, f.server)
}

// chatOnce sends one message. Its error is how the turn ended, unless it was completed.
func chatOnce(ctx context.Context, c *chat, cmd *cobra.Command, message string) error {
	c.ownOnly = true
	c.screen = &plain{out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()}
	if err := c.open(ctx); err != nil {
		return err
	}
	end, err := c.answer(ctx, message)
	if err != nil {
		return err
	}
	switch end.Outcome {
	case wirepb.Outcome_OUTCOME_STOPPED, wirepb.Outcome_OUTCOME_SUPERSEDED:
		return errInterrupted // showEnd has said which
	}
	return failure(end)
}

// chatTerminal talks to a person. The terminal is raw until it returns.
func chatTerminal(ctx context.Context, c *chat, ctrlC chan<- struct{}, in, out *os.File, session string, server *url.URL) error {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("prepare the terminal: %w", err)
	}
	defer func() { _ = term.Restore(int(in.Fd()), before) }()

	ks := newKeys(ctrlC)
	go ks.pump(in)

	console := &console{out: out, color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	editor := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{ks, out}, console.style(styleBold, promptPlain))
	editor.SetBracketedPasteMode(true)
	defer editor.SetBracketedPasteMode(false)
	console.editor = editor
	lines := &editorLines{editor: editor, keys: ks, console: console, size: func() (int, int, error) { return term.GetSize(int(out.Fd())) }}
	lines.start()
	defer lines.Close()
	c.screen, c.lines = console, lines

	c.banner = fmt.Sprintf("session %s at %s; Ctrl-C stops an answer, Ctrl-D leaves", session, server)
	if err := c.open(ctx); err != nil {
		return err
	}
	err = c.converse(ctx)
	if errors.Is(err, errInterrupted) {
		err = nil // a person leaves: that is no failure
	}
	console.Status("leaving") // in the place of the prompt
	console.Note(fmt.Sprintf("to go on: holdfast chat --session %s", session))
	return err
}

// terminal returns the command's terminal, if both sides are one.
func terminal(cmd *cobra.Command) (in, out *os.File, ok bool) {
	in, inFile := cmd.InOrStdin().(*os.File)
	out, outFile := cmd.OutOrStdout().(*os.File)
	return in, out, inFile && outFile && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd()))
}

// onSignals tells ctrlC of SIGINT and lets SIGTERM end the command, until release is called.
func onSignals(ctrlC chan<- struct{}, cancel context.CancelCauseFunc) (release func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := range signals {
			if s != os.Interrupt {
				cancel(errInterrupted)
				continue
			}
			select {
			case ctrlC <- struct{}{}:
			default: // one is pending
			}
		}
	}()
	return func() {
		signal.Stop(signals) // nothing is sent after it returns
		close(signals)
		<-done
	}
}

func oneShotMessage(f chatFlags, in io.Reader) (string, error) {
	if !f.oneShot {
		return "", nil
	}
	text := f.message
	if text == "-" {
		b, err := io.ReadAll(io.LimitReader(bufio.NewReader(in), maxMessage+1))
		if err != nil {
			return "", fmt.Errorf("read the message from the input: %w", err)
		}
		if len(b) > maxMessage {
			return "", proto.Errorf(proto.CodeTooLarge, "the message on the input has more than %d bytes", maxMessage)
		}
		text = string(b)
	}
	if text = strings.TrimSpace(strings.ToValidUTF8(text, "\ufffd")); text == "" {
		return "", &proto.Error{Code: proto.CodeInvalidArgument, Message: "the message is empty", Hint: "give one with --message TEXT, or on the input with --message -"}
	}
	return text, nil
}

// parseServer takes a URL, or a host and port.
func parseServer(s string) (*url.URL, error) {
	full := s
	if !strings.Contains(s, "://") {
		full = "http://" + s
	}
	u, err := url.Parse(full)
	if err == nil {
		switch u.Scheme {
		case "ws":
			u.Scheme = "http"
		case "wss":
			u.Scheme = "https"
		}
		if u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") {
			u.RawQuery, u.Fragment = "", ""
			return u, nil
		}
	}
	return nil, &proto.Error{Code: proto.CodeInvalidArgument, Message: fmt.Sprintf("--server %q is not an address", s), Hint: "give one such as " + defaultServer, Err: err}
}

// checkSessionName finds what no name may have; the server knows the rest.
func checkSessionName(name string) error {
	if strings.ContainsFunc(name, func(r rune) bool { return r == '/' || unicode.IsControl(r) || r == unicode.ReplacementChar }) {
		return &proto.Error{Code: proto.CodeInvalidName, Message: fmt.Sprintf("%q cannot name a session", name), Hint: "use letters, digits, '-', '_' and '.'"}
	}
	return nil
}

// explain gives an unreachable server a code and a hint.
func explain(err error, server string) error {
	if !errors.Is(err, errUnreachable) {
		return err
	}
	var dial *net.OpError
	if errors.As(err, &dial) {
		err = dial.Err // "connection refused" says it all
	}
	return &proto.Error{
		Code: proto.CodeUnavailable, Message: fmt.Sprintf("no holdfast server answers at %s", server), Err: err,
		Hint: "start one with `holdfast serve`, or `make run` in the source tree; or name another with --server",
	}
}

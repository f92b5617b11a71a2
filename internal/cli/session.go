package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport/client"
)

// newSession makes the command "session" and those below it.
func newSession() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "Look at sessions",
		Args:  unknownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSessionShow())
	return cmd
}

func newSessionShow() *cobra.Command {
	var server string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Print a session: its turns and how each ended",
		Long: `Print a session that a running server holds: each turn's message, its answer and how it ended. It prints what is durable
at that moment and does not wait for the rest of an answer.

With --json it prints the log, one entry a line, as the protocol has it.`,
		Example: `  holdfast session show main
  holdfast session show main --json | jq -r .chunk.text`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkSessionName(args[0]); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			object, entries, err := readSession(ctx, server, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeEntries(cmd.OutOrStdout(), entries)
			}
			return writeTranscript(cmd.OutOrStdout(), object, entries)
		},
	}
	cmd.Flags().StringVar(&server, "server", defaultServer, "address of the server")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the log's entries")
	return cmd
}

// readSession reads what is durable of a session.
func readSession(ctx context.Context, server, name string) (object string, entries []*wirepb.Entry, err error) {
	u, err := parseServer(server)
	if err != nil {
		return "", nil, err
	}
	c, err := client.Dial(ctx, u.String(), client.Options{Name: "holdfast-session/1"})
	if err != nil {
		return "", nil, unreachable(err, server)
	}
	defer c.Close()
	object = c.Address("session", name)
	a, err := c.Attach(object, client.AttachOptions{})
	if err != nil {
		return "", nil, err
	}
	for {
		ev, err := a.Next(ctx)
		switch {
		case err != nil:
			return "", nil, err
		case ev.Lost != nil: // it would come back, but a script should not hang on a server that does not
			return "", nil, unreachable(ev.Lost, server)
		case ev.Reset != nil: // what came so far is of another history
			entries = nil
		case ev.Entry != nil:
			entries = append(entries, ev.Entry)
		case ev.CaughtUp:
			if len(entries) == 0 {
				return "", nil, &proto.Error{Code: proto.CodeNotFound, Message: fmt.Sprintf("%s has no entries", object), Hint: "a session begins with its first message: `holdfast chat --session " + name + "`"}
			}
			return object, entries, nil
		}
	}
}

// unreachable is the error for a server that does not answer; one that refuses has its own.
func unreachable(err error, server string) error {
	var coded *proto.Error
	if errors.As(err, &coded) || errors.Is(err, context.Canceled) {
		return err
	}
	return &proto.Error{
		Code: proto.CodeUnavailable, Message: fmt.Sprintf("no holdfast server answers at %s", server), Err: err,
		Hint: "start one with `holdfast serve`, or name another with --server",
	}
}

func writeEntries(w io.Writer, entries []*wirepb.Entry) error {
	for _, e := range entries {
		b, err := protojson.Marshal(e)
		if err != nil {
			return fmt.Errorf("render the entry at offset %d: %w", e.Offset, err)
		}
		var line bytes.Buffer // protojson varies its spaces on purpose
		if err := json.Compact(&line, b); err != nil {
			return fmt.Errorf("render the entry at offset %d: %w", e.Offset, err)
		}
		line.WriteByte('\n')
		if _, err := line.WriteTo(w); err != nil {
			return err
		}
	}
	return nil
}

// shownTurn is a turn as writeTranscript gathers it.
type shownTurn struct {
	id       uint64
	at       time.Time
	message  *wirepb.UserMessage
	attempts []*wirepb.Attempt
	answer   strings.Builder
	calls    []*wirepb.ToolCall
	end      *wirepb.Terminal
}

func gatherTurns(entries []*wirepb.Entry) []*shownTurn {
	var turns []*shownTurn
	byID := make(map[uint64]*shownTurn)
	for _, e := range entries {
		t := byID[e.Turn]
		if t == nil {
			if e.GetUserMessage() == nil {
				continue // outside turns, such as a title
			}
			t = &shownTurn{id: e.Turn, at: time.UnixMilli(e.TimeUnixMs)}
			byID[e.Turn] = t
			turns = append(turns, t)
		}
		switch b := e.Body.(type) {
		case *wirepb.Entry_UserMessage:
			t.message = b.UserMessage
		case *wirepb.Entry_Attempt:
			t.attempts = append(t.attempts, b.Attempt)
		case *wirepb.Entry_Chunk:
			t.answer.WriteString(b.Chunk.Text)
		case *wirepb.Entry_ToolCall:
			t.calls = append(t.calls, b.ToolCall)
		case *wirepb.Entry_Terminal:
			t.end = b.Terminal
		}
	}
	return turns
}

// writeTranscript prints turns for a person. Everything that others wrote is made safe for a terminal.
func writeTranscript(w io.Writer, object string, entries []*wirepb.Entry) error {
	turns := gatherTurns(entries)
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %s\n", clean(object), count(len(turns), "turn", "turns"), count(len(entries), "entry", "entries"))
	for _, t := range turns {
		fmt.Fprintf(&b, "\n[%d] %s  %s\n%s\n", t.id, t.at.UTC().Format(time.RFC3339), clean(t.message.User), indent(clean(t.message.Text)))
		fmt.Fprintf(&b, "  -> %s\n", t.outcome())
		if text := clean(t.answer.String()); text != "" {
			b.WriteString(indent(text) + "\n")
		}
		for _, c := range t.calls {
			fmt.Fprintf(&b, "    calls %s %s\n", clean(c.Name), clean(c.ArgumentsJson))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// outcome says in one line which model answered, and how the turn ended.
func (t *shownTurn) outcome() string {
	var parts []string
	if n := len(t.attempts); n > 0 {
		parts = append(parts, clean(t.attempts[n-1].Model))
		if n > 1 {
			parts = append(parts, fmt.Sprintf("%d attempts", n))
		}
	}
	switch {
	case t.end == nil:
		parts = append(parts, "open")
	case t.end.Error != nil:
		parts = append(parts, fmt.Sprintf("%s (%s: %s)", outcomeName(t.end.Outcome), clean(t.end.Error.Code), clean(t.end.Error.Message)))
	case t.end.FinishReason != "":
		parts = append(parts, fmt.Sprintf("%s (%s)", outcomeName(t.end.Outcome), clean(t.end.FinishReason)))
	default:
		parts = append(parts, outcomeName(t.end.Outcome))
	}
	if u := t.end.GetUsage(); u.GetCompletionTokens() > 0 {
		parts = append(parts, fmt.Sprintf("%d tokens", u.CompletionTokens))
		if u.CompletionMs > 0 {
			parts = append(parts, fmt.Sprintf("%.1f tokens/s", 1000*float64(u.CompletionTokens)/float64(u.CompletionMs)))
		}
	}
	return strings.Join(parts, ", ")
}

func outcomeName(o wirepb.Outcome) string {
	return strings.ToLower(strings.TrimPrefix(o.String(), "OUTCOME_"))
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n    ")
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/internal/node"
	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/transport"
)

// Program is what a process was given.
type Program struct {
	Args           []string // without the program's name
	Kinds          []actors.Kind
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Run runs one command line and returns its exit status.
func Run(p Program) int {
	root := newRoot(p)
	root.SetArgs(p.Args)
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	err := root.ExecuteContext(context.Background())
	printError(p.Stderr, err)
	return exitStatus(err)
}

func newRoot(p Program) *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "Durable chat sessions and the models behind them, in one process",
		Long: `Holdfast serves named, durable sessions that talk to a language model in the same process. A client may vanish and
come back, and so may the server: what was shown is never lost, and answers go on where they were.`,
		Example: `  holdfast serve
  holdfast chat
  holdfast chat --message "Why is the sea salty?"
  holdfast session show main`,
		Args:          unknownCommand,
		Version:       buildVersion(), // --version, which people try first
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newServe(p.Kinds), newChat(), newSession(), newModel(), newVersion())
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError(cmd, err) })
	for _, cmd := range allCommands(root) {
		if check := cmd.Args; check != nil {
			cmd.Args = func(cmd *cobra.Command, args []string) error { return usageError(cmd, check(cmd, args)) }
		}
	}
	return root
}

// unknownCommand is the Args of commands that have only subcommands.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	return fmt.Errorf("there is no command %q; the closest is %q", args[0], closest(args[0], names))
}

func allCommands(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		all = append(all, allCommands(sub)...)
	}
	return all
}

// usageError says that the command line is wrong.
func usageError(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return &node.Error{Code: node.CodeUsage, Err: err, Hint: fmt.Sprintf("`%s --help` shows what it takes", cmd.CommandPath())}
}

// printError tells a person what went wrong and what to do.
func printError(w io.Writer, err error) {
	if err == nil || errors.Is(err, errInterrupted) {
		return
	}
	code, message, hint := describe(err)
	if code != "" {
		message = code + ": " + message
	}
	_, _ = fmt.Fprintf(w, "holdfast: %s\n", message)
	if hint != "" {
		_, _ = fmt.Fprintf(w, "  hint: %s\n", hint)
	}
}

// describe finds the code and the hint of an error.
func describe(err error) (code, message, hint string) {
	var local *node.Error
	if errors.As(err, &local) {
		return string(local.Code), err.Error(), local.Hint
	}
	var remote *proto.Error
	if errors.As(err, &remote) {
		hint = remote.Hint
		if hint == "" {
			hint = transport.Lookup(remote.Code).Hint
		}
		return string(remote.Code), strings.TrimPrefix(err.Error(), string(remote.Code)+": "), hint
	}
	return "", err.Error(), ""
}

// Exit statuses beside those of node.Error.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNoServer    = 8
	exitInterrupted = 130 // as shells say for SIGINT
)

func exitStatus(err error) int {
	var local *node.Error
	var remote *proto.Error
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &local):
		return local.ExitStatus()
	case errors.As(err, &remote):
		switch remote.Code {
		case proto.CodeUnavailable:
			return exitNoServer
		case proto.CodeInvalidArgument, proto.CodeInvalidName, proto.CodeTooLarge:
			return exitUsage
		}
	}
	return exitFailed
}

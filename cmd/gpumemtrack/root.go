package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// app is what commands share: the three streams.
type app struct {
	stdin  io.Reader
	stdout *output
	stderr io.Writer
}

// output is a stream that remembers that it could not be written to, so that no
// command needs to look after each line.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// commands are all there are; a new one is a line here and a file of its own.
var commands = []func(*app) *cobra.Command{
	recordCommand,
	sensorsCommand,
	chartCommand,
	estimateCommand,
	showCommand,
	diffCommand,
	convertCommand,
	demoCommand,
	completionCommand,
}

// Exit codes.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitUnfit   = 3
	exitSignal  = 128 // and the signal's number: as shells say it
	programName = "gpumemtrack"
)

// codedError is an error with an exit code of its own. Without an error there
// is nothing to say.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, args...)}
}

// run is the whole program but for its exit.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin, &output{Writer: stdout}, stderr}
	root := a.root(args)
	err := root.Execute()
	if err == nil {
		err = a.stdout.err
	}
	if err == nil {
		return 0
	}
	if text := err.Error(); text != "" {
		fmt.Fprintf(stderr, "%s: %s\n", programName, strings.ReplaceAll(text, "\n", "; "))
	}
	if coded, ok := errors.AsType[*codedError](err); ok {
		return coded.code
	}
	return exitFailed
}

func (a *app) root(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   programName,
		Short: "GPU memory: recorded, charted, estimated, explained",
		Example: `  gpumemtrack demo                              # a first look, without a GPU
  gpumemtrack sensors -w                        # watch the GPUs
  gpumemtrack record -o memory.png -- ./train   # a chart of a program's GPU memory`,
		SilenceErrors: true,
		SilenceUsage:  true,

		SuggestionsMinimumDistance: 2,

		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}, // there is one of our own

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				cmd.SetOut(a.stderr)
				return errors.Join(cmd.Help(), &codedError{code: exitUsage})
			}
			return unknownCommand(cmd, args[0])
		},
	}
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// A command that is not there comes with flags that the root does not know.
		if cmd == root && !strings.HasPrefix(args[0], "-") {
			return unknownCommand(root, args[0])
		}
		return usageError("%w: see %s --help", err, cmd.CommandPath())
	})
	for _, command := range commands {
		root.AddCommand(command(a))
	}
	root.SetHelpCommand(helpCommand(root))
	return root
}

// helpCommand is cobra's, but for a command that is not there, which is an error.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Help about a command",
		Example: "  gpumemtrack help record",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, _, err := root.Find(args)
			if err != nil || cmd == root && len(args) > 0 {
				return unknownCommand(root, args[0])
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		return usageError("there is no command %q: did you mean %s?", name, strings.Join(near, " or "))
	}
	return usageError("there is no command %q: see %s --help", name, programName)
}

// exactly is an Args that says what is missing, in the command's own words.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError("%s: name %s: see %s --help", cmd.Name(), what, cmd.CommandPath())
		}
		return nil
	}
}

func none(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError("%s: %q is one word too many: see %s --help", cmd.Name(), args[0], cmd.CommandPath())
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// commands are all there are; a new one is a line here and a file of its own.
var commands = []func(*app) *cobra.Command{
	recordCommand,
	attachCommand,
	sensorsCommand,
	topCommand,
	chartCommand,
	estimateCommand,
	showCommand,
	diffCommand,
	convertCommand,
	replayCommand,
	explainCommand,
	demoCommand,
	completionCommand,
	versionCommand,
}

// run is the whole program except its exit.
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
		Use:   programName + " COMMAND",
		Short: "GPU memory: recorded, charted, estimated, explained",
		Long: `GPU memory: recorded, charted, estimated, explained.

Exit codes:
  0  success
  1  failure
  2  wrong usage
  3  the answer is no: the model does not fit (estimate --fits), the run would
     not have fitted (replay), or memory grew by more (diff --fail-over)

record and attach exit with the code of the command that they run: 126 if it
cannot be run, 127 if it is not found, and 128 plus the signal's number if a
signal ended it.`,
		Version: versionText(),

		DisableFlagsInUseLine: true,
		Example: `  gpumemtrack demo                              # a first look, without a GPU
  gpumemtrack sensors -w                        # watch the GPUs
  gpumemtrack record -o memory.png -- ./train   # chart a program's GPU memory`,
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
	root.SetUsageTemplate(usageTemplate)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// A command that is not there comes with flags that the root does not know.
		if cmd == root && !strings.HasPrefix(args[0], "-") {
			return unknownCommand(root, args[0])
		}
		return usageError("%w: see %s --help", flagError(err), cmd.CommandPath())
	})
	for _, command := range commands {
		root.AddCommand(command(a))
	}
	root.SetHelpCommand(helpCommand(root))
	return root
}

// helpCommand is cobra's, except that an unknown command is an error.
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

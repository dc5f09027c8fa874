// Package cli runs the commands of gpumemtrack, and has what they share. Run runs one and returns the exit
// code; a command returns errors made by UsageError, Exit and ExitAs. Open reads what an argument names,
// Writer, WriteNew and NewLog write files, OpenSource opens the source of a GPU's values, and Grid prints tables that fit the
// terminal. The only commands in it are those about the program itself.
package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
)

// Command is one of the program's commands. New builds it, with its flags and its help. Only the
// command that runs is built; all of them are built for help, completion and suggestions.
type Command struct {
	Name string
	New  func(*App) *cobra.Command
}

// Run runs the program with these commands and returns its exit code.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer, commands ...Command) int {
	defer keepClosedPipes()()
	shows := newProgress(stdout, stderr)
	a := &App{
		Args: args, Stdin: stdin, Stdout: &output{Writer: stdout, before: shows.answer}, Stderr: &output{Writer: stderr, before: shows.answer}, progress: shows,
	}
	defer shows.finish()
	root := a.Root(asked(args, commands)...)
	return end(a, root.Execute())
}

const about = `GPU memory: recorded, charted, estimated, explained.

Exit codes:
  0  success
  1  failure
  2  wrong usage
  3  the answer is no: the model does not fit (estimate --fits), the run would
     not have fitted (replay), or memory grew by more (diff --fail-over)
  4  the answer is not known (estimate --fits)

record and attach exit with the code of the command that they run: 126 if it
cannot be run, 127 if it is not found, and 128 plus the signal's number if a
signal ended it. Only if that is 0, and an output of their own could not be
written, is it 1.`

// asked returns the command that the arguments name, or all commands if they name none.
func asked(args []string, commands []Command) []Command {
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") && arg != "--" {
			continue // no flag of the root has a value
		}
		if i := slices.IndexFunc(commands, func(c Command) bool { return c.Name == arg }); i >= 0 {
			return commands[i : i+1]
		}
		break
	}
	return commands
}

// Root builds the root command and these commands below it.
func (a *App) Root(commands ...Command) *cobra.Command {
	version := false
	root := &cobra.Command{
		Use:   ProgramName + " COMMAND",
		Short: "GPU memory: recorded, charted, estimated, explained",
		Long:  about,

		DisableFlagsInUseLine: true,
		Example: `  gpumemtrack demo                              # a first look, without a GPU
  gpumemtrack sensors -w                        # watch the GPUs
  gpumemtrack record -o memory.png -- ./train   # chart a program's GPU memory`,
		SilenceErrors: true,
		SilenceUsage:  true,

		SuggestionsMinimumDistance: 2,

		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}, // there is one of our own

		PersistentPreRun: func(cmd *cobra.Command, _ []string) { a.command = cmd.Name() },

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if version {
				return writeVersion(a, false)
			}
			if len(args) == 0 {
				cmd.SetOut(a.Stderr)
				return errors.Join(cmd.Help(), Exit(ExitUsage, nil))
			}
			return unknownCommand(cmd, args[0])
		},
	}
	// usage replaces Cobra's template, which neither wraps flags nor knows headings and topics.
	root.Flags().BoolVarP(&version, "version", "v", false, "version for "+ProgramName)
	root.SetUsageFunc(a.usage)
	root.SetArgs(a.Args)
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// A command that does not exist may stand beside flags that the root does not know.
		if cmd == root && !strings.HasPrefix(a.Args[0], "-") {
			return unknownCommand(root, a.Args[0])
		}
		if err = flagError(cmd, err); strings.HasSuffix(err.Error(), "?") {
			return UsageError("%w", err)
		}
		return UsageError("%w: see %s --help", err, cmd.CommandPath())
	})
	for _, command := range commands {
		root.AddCommand(command.New(a))
	}
	a.AddTopics(root, Topic{Name: "inputs", Title: "The files that are read", Text: inputs.Help})
	root.SetHelpCommand(a.helpCommand(root))
	return root
}

func unknownCommand(cmd *cobra.Command, name string) error {
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		return UsageError("there is no command %q: did you mean %s?", name, strings.Join(near, " or "))
	}
	return UsageError("there is no command %q: see %s --help", name, ProgramName)
}

// Reading returns the same for a flag of the command that reads other kinds of files than the command itself.
func (a *App) Reading(command string) *App {
	other := *a
	other.command = command
	return &other
}

// end prints the error of a command that has ended, and returns the exit code. An output that was lost is a failure
// whatever the command returned. If standard output is a pipe that its reader has closed, the program
// ends as other programs do there: silently, with the code of SIGPIPE.
func end(a *App, err error) int {
	code, ofChild := codeOf(err)
	lost := a.Stdout.failure()
	closed := isClosedPipe(lost)
	if lost != nil && !closed && !errors.Is(err, lost) {
		err = errors.Join(err, lost)
	}
	if lines := messages(err, closed); len(lines) > 0 {
		fmt.Fprintf(a.Stderr, "%s: %s\n", ProgramName, strings.Join(slices.Compact(lines), "; "))
	}
	unwritten := lost != nil && !closed || isUnwritten(err)
	if errs, ok := a.Stderr.(*output); ok {
		failure := errs.failure()
		unwritten = unwritten || failure != nil && !isClosedPipe(failure)
	}
	switch {
	case ofChild && code != 0:
		return code
	case closed && !ofChild:
		return exitClosedPipe
	case unwritten && (code == 0 || lost != nil):
		return ExitFailed
	}
	return code
}

// WriteJSON prints a value as one line.
func WriteJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	if err := out.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escaped(text.Bytes()))
	return err
}

// escaped writes characters that control a terminal as JSON escapes. In a JSON text they can only
// be in strings.
func escaped(text []byte) []byte {
	if !bytes.ContainsFunc(text, controlsTerminal) {
		return text
	}
	var out bytes.Buffer
	for _, r := range string(text) {
		if !controlsTerminal(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&out, "\\u%04x", unit)
		}
	}
	return out.Bytes()
}

func controlsTerminal(r rune) bool { return r > '~' && !unicode.IsPrint(r) }

// WriteObject prints a value whose JSON is an object, with the name of its schema as the first key.
func WriteObject(out io.Writer, schema string, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = fmt.Fprintf(out, "{\"schema\":%q,%s\n", schema, escaped(text[1:]))
	}
	return err
}

// flagError says in plain words what is wrong with a flag.
func flagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return unknownFlag(cmd, cmp.Or(unknown.GetSpecifiedShortnames(), unknown.GetSpecifiedName()), err)
	}
	wrong, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	want := map[string]string{
		"int": "want a whole number", "duration": "want a time such as 500ms, 10s or 5m", "bool": "want true or false",
		"float64": "want a number", "float64Slice": "want numbers such as 3,1",
	}[wrong.GetFlag().Value.Type()]
	if want == "" {
		return fmt.Errorf("--%s %s: %w", wrong.GetFlag().Name, wrong.GetValue(), errors.Unwrap(wrong))
	}
	return fmt.Errorf("--%s %s: %s", wrong.GetFlag().Name, wrong.GetValue(), want)
}

package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// SizeFlag is the value of a flag that sets a size. It refuses a small number without a unit:
// nobody who writes 10 means ten bytes.
func SizeFlag(to *alloc.Bytes) pflag.Value { return sizeFlag{to} }

type sizeFlag struct{ *alloc.Bytes }

func (sizeFlag) Type() string { return "size" }

func (s sizeFlag) String() string {
	if s.Bytes == nil || *s.Bytes == 0 {
		return ""
	}
	return s.Bytes.String()
}

func (s sizeFlag) Set(text string) error {
	text = strings.TrimSpace(text)
	if v, err := strconv.ParseFloat(text, 64); err == nil && v != 0 && v < float64(alloc.MiB) && v > 0 {
		return fmt.Errorf("did you mean %sGiB? A number needs its unit: %sB for bytes", text, text)
	}
	return s.Bytes.Set(text)
}

// flagError says in plain words what is wrong with a flag.
func flagError(err error) error {
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

// Complete makes a flag's values known to the shell.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the command has no such flag
	}
}

// usage prints how a command is used. Flags wrap at 80 columns, and what a user fills in is in capitals, as in
// every command's Use.
func (a *App) usage(cmd *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s", cmd.UseLine())
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\n\nExamples:\n%s", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n\nCommands:")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() || sub.Name() == "help" {
				fmt.Fprintf(&b, "\n  %-*s %s", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	if cmd.HasAvailableLocalFlags() {
		b.WriteString("\n\n" + flagUsages(cmd.LocalFlags()))
	}
	b.WriteString(a.topicList(cmd))
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\nUse \"%s COMMAND --help\" for more about a command.", cmd.CommandPath())
	}
	_, err := fmt.Fprintln(cmd.OutOrStderr(), b.String())
	return err
}

// headingKey annotates a flag with the heading of help under which it stands.
const headingKey = "heading"

// Heading puts flags of a command under a heading of its help, after those without one.
func Heading(cmd *cobra.Command, title string, flags ...string) {
	for _, name := range flags {
		if err := cmd.Flags().SetAnnotation(name, headingKey, []string{title}); err != nil {
			panic(err) // the command has no such flag
		}
	}
}

// optional is how pflag writes a flag that may stand alone.
var optional = regexp.MustCompile(` ([A-Z]+)\[="-"\]`)

// flagUsages describes flags under their headings, in the order in which headings first occur.
// Flags that have a help page of their own are left out.
func flagUsages(all *pflag.FlagSet) string {
	titles, sets := []string{"Flags"}, map[string]*pflag.FlagSet{"Flags": pflag.NewFlagSet("", pflag.ContinueOnError)}
	all.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[topicKey] != nil {
			return
		}
		title := "Flags"
		if at := f.Annotations[headingKey]; len(at) > 0 {
			title = at[0]
		}
		if sets[title] == nil {
			titles, sets[title] = append(titles, title), pflag.NewFlagSet("", pflag.ContinueOnError)
		}
		sets[title].AddFlag(f)
	})
	var parts []string
	for _, title := range titles {
		usages := optional.ReplaceAllString(sets[title].FlagUsagesWrapped(80), "[=$1]    ")
		parts = append(parts, title+":\n"+strings.TrimRight(usages, " \n"))
	}
	return strings.Join(parts, "\n\n")
}

package cli

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

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

// helpCommand is like cobra's, but an unknown command is an error.
func (a *App) helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Help about a command",
		Example: "  gpumemtrack help record",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				if page, ok := a.topicPage(root, args[0]); ok {
					_, err := fmt.Fprint(root.OutOrStdout(), page)
					return err
				}
			}
			cmd, _, err := root.Find(args)
			if err != nil || cmd == root && len(args) > 0 {
				return unknownCommand(root, args[0])
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// Topic is a page of help beside a command's own: gpumemtrack help COMMAND-NAME prints it, and help NAME one
// of the root command. It has these flags, which the command's own help then leaves out.
type Topic struct {
	Name, Title string
	Text        func() string // nil means none
	Flags       []string
}

// topicKey annotates a flag with the topic that has it.
const topicKey = "topic"

// AddTopics adds pages of help to a command.
func (a *App) AddTopics(cmd *cobra.Command, topics ...Topic) {
	if a.topics == nil {
		a.topics = make(map[*cobra.Command][]Topic)
	}
	a.topics[cmd] = append(a.topics[cmd], topics...)
	for _, topic := range topics {
		for _, flag := range topic.Flags {
			if err := cmd.Flags().SetAnnotation(flag, topicKey, []string{topic.Name}); err != nil {
				panic(err) // the command has no such flag
			}
		}
	}
}

// Topics returns the topics of a command.
func (a *App) Topics(cmd *cobra.Command) []Topic { return a.topics[cmd] }

// topicList lists the topics of a command, for the end of its help.
func (a *App) topicList(cmd *cobra.Command) string {
	var b strings.Builder
	for i, topic := range a.topics[cmd] {
		if i == 0 {
			b.WriteString("\n\nMore help:")
		}
		fmt.Fprintf(&b, "\n  %-40s %s", fmt.Sprintf("%s help %s", ProgramName, topic.pageOf(cmd)), topic.Title)
	}
	return b.String()
}

// topicPage returns the page that "gpumemtrack help" knows by this name, if there is one.
func (a *App) topicPage(root *cobra.Command, page string) (string, bool) {
	for _, cmd := range append(root.Commands(), root) {
		for _, topic := range a.topics[cmd] {
			if page == topic.pageOf(cmd) {
				return topic.page(cmd), true
			}
		}
	}
	return "", false
}

// pageOf returns the name of the page, by which "gpumemtrack help" knows it.
func (t Topic) pageOf(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return t.Name
	}
	return cmd.Name() + "-" + t.Name
}

func (t Topic) page(cmd *cobra.Command) string {
	of := cmd.Name()
	if !cmd.HasParent() {
		of = "help " + t.Name
	}
	b := fmt.Sprintf("%s %s: %s\n", ProgramName, of, t.Title)
	if t.Text != nil {
		b += "\n" + t.Text() + "\n"
	}
	if len(t.Flags) == 0 {
		return b
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, name := range t.Flags {
		flags.AddFlag(cmd.Flags().Lookup(name))
	}
	return b + "\nFlags:\n" + strings.TrimRight(flags.FlagUsagesWrapped(80), " \n") + "\n"
}

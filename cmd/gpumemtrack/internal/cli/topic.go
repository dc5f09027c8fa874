package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// topicKey annotates a flag with the page of help on which it stands, and a command with its pages: names in
// their order, and each page's text by its name.
const topicKey = "topic"

// Topic gives a command a page of help of its own, with a title, a text and these flags, which the command's
// help leaves out: gpumemtrack help COMMAND-NAME.
func Topic(cmd *cobra.Command, name, title, text string, flags ...string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[topicKey] += " " + name
	cmd.Annotations[topicKey+" "+name] = title + "\n" + text
	for _, flag := range flags {
		if err := cmd.Flags().SetAnnotation(flag, topicKey, []string{name}); err != nil {
			panic(err) // the command has no such flag
		}
	}
}

// topics lists the pages of a command, for the end of its help.
func topics(cmd *cobra.Command) string {
	names := strings.Fields(cmd.Annotations[topicKey])
	if len(names) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n\nMore help:\n")
	for _, name := range names {
		title, _, _ := strings.Cut(cmd.Annotations[topicKey+" "+name], "\n")
		fmt.Fprintf(&b, "  %-40s %s\n", fmt.Sprintf("%s help %s-%s", ProgramName, cmd.Name(), name), title)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// topicPage is the page that "gpumemtrack help" calls COMMAND-NAME, if there is one.
func topicPage(root *cobra.Command, page string) (string, bool) {
	for _, cmd := range root.Commands() {
		name, ok := strings.CutPrefix(page, cmd.Name()+"-")
		about, found := cmd.Annotations[topicKey+" "+name]
		if !ok || !found {
			continue
		}
		title, text, _ := strings.Cut(about, "\n")
		b := fmt.Sprintf("%s %s: %s\n", ProgramName, cmd.Name(), title)
		if text != "" {
			b += "\n" + text + "\n"
		}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if at := f.Annotations[topicKey]; len(at) > 0 && at[0] == name {
				flags.AddFlag(f)
			}
		})
		if flags.HasFlags() {
			b += "\nFlags:\n" + strings.TrimRight(flags.FlagUsagesWrapped(80), " \n") + "\n"
		}
		return b, true
	}
	return "", false
}

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// topicKey is the annotation that names a flag's help page. On a command it lists the names of its
// pages; each page's text is annotated under the page's name.
const topicKey = "topic"

// Topic gives a command another help page, printed by gpumemtrack help COMMAND-NAME. It has a
// title, a text and these flags, which the command's own help then leaves out.
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

// topicPage returns the page that "gpumemtrack help" knows as COMMAND-NAME, if there is one.
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

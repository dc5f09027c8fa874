package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Topic is a page of help beside a command's own: gpumemtrack help COMMAND-NAME prints it. It has
// these flags, which the command's own help then leaves out.
type Topic struct {
	Name, Title string
	Text        func() string // nil means none
	Flags       []string
}

// topicKey annotates a flag with the topic that has it.
const topicKey = "topic"

// AddTopics gives a command more pages of help.
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
		fmt.Fprintf(&b, "\n  %-40s %s", fmt.Sprintf("%s help %s-%s", ProgramName, cmd.Name(), topic.Name), topic.Title)
	}
	return b.String()
}

// topicPage returns the page that "gpumemtrack help" knows as COMMAND-NAME, if there is one.
func (a *App) topicPage(root *cobra.Command, page string) (string, bool) {
	for _, cmd := range root.Commands() {
		for _, topic := range a.topics[cmd] {
			if page == cmd.Name()+"-"+topic.Name {
				return topic.page(cmd), true
			}
		}
	}
	return "", false
}

func (t Topic) page(cmd *cobra.Command) string {
	b := fmt.Sprintf("%s %s: %s\n", ProgramName, cmd.Name(), t.Title)
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

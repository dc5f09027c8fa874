package commands

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
)

// TestCommandsHaveTheirNames: the names by which commands are found are those that they have.
func TestCommandsHaveTheirNames(t *testing.T) {
	for _, command := range All {
		assert.Equal(t, command.Name, command.New(&cli.App{}).Name())
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	for _, command := range All {
		cmd := command.New(&cli.App{})
		assert.NotEmpty(t, cmd.Example, cmd.Name())
		assert.NotEmpty(t, cmd.Short, cmd.Name())
	}
}

// Every flag with a value says in capitals what the value is, and nothing in Go's words.
func TestFlagsNameTheirValues(t *testing.T) {
	for _, command := range All {
		cmd := command.New(&cli.App{})
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			name, _ := pflag.UnquoteUsage(f)
			if f.Value.Type() != "bool" {
				assert.Equal(t, strings.ToUpper(name), name, "%s --%s", cmd.Name(), f.Name)
				assert.NotEmpty(t, name, "%s --%s", cmd.Name(), f.Name)
			}
		})
	}
}

// TestCommandsThatReadFilesHaveTheirFlags: each command that reads a kind of file has the flags that say which kind, and how
// large, and no other command has them.
func TestCommandsThatReadFilesHaveTheirFlags(t *testing.T) {
	reads := 0
	for _, command := range All {
		cmd := command.New(&cli.App{})
		takes := len(inputs.Names(command.Name)) > 0
		if takes {
			reads++
		}
		for _, flag := range []string{"as", "max-file", "max-memory"} {
			assert.Equal(t, takes, cmd.Flags().Lookup(flag) != nil, "%s --%s", command.Name, flag)
		}
	}
	assert.GreaterOrEqual(t, reads, 9)
}

// named is the command of this name.
func named(t *testing.T, name string) cli.Command {
	i := slices.IndexFunc(All, func(c cli.Command) bool { return c.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return All[i]
}

// Flags with a choice of words complete them.
func TestFlagsWithAChoiceComplete(t *testing.T) {
	for command, flags := range map[string][]string{
		"show": {"by", "of", "at", "kind"}, "diff": {"by", "of", "at", "kind"}, "record": {"source", "with"}, "sensors": {"source"}, "replay": {"allocator"}, "layers": {"sort"},
		"estimate": {"optimizer", "optimizer-form", "gpu", "offload", "zero-grad", "dtype", "autocast", "kv", "zero"},
	} {
		cmd := named(t, command).New(&cli.App{})
		for _, flag := range flags {
			complete, ok := cmd.GetFlagCompletionFunc(flag)
			require.True(t, ok, "%s --%s", command, flag)
			values, _ := complete(cmd, nil, "")
			assert.Greater(t, len(values), 1)
		}
	}
}

// Each flag of a command stands in its help once, under a heading if it has one.
func TestHelpHasEachFlagOnce(t *testing.T) {
	for _, command := range All {
		cmd := command.New(&cli.App{})
		text := flagsOf(t, command.Name) + topicsOf(t, command)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			found := regexp.MustCompile(`(?m)^ .{5}--`+f.Name+`( |\[|$)`).FindAllString(text, -1)
			assert.Len(t, found, 1, "%s --%s", cmd.Name(), f.Name)
		})
	}
	assert.Contains(t, topicsOf(t, named(t, "estimate")), "llama.cpp\n\nFlags:\n")
}

// topicPages are the names of a command's pages of help beside its own.
func topicPages(command cli.Command) []string {
	var pages []string
	a := new(cli.App)
	for _, topic := range a.Topics(command.New(a)) {
		pages = append(pages, command.Name+"-"+topic.Name)
	}
	return pages
}

// topicsOf are the texts of these pages.
func topicsOf(t *testing.T, command cli.Command) string {
	var out bytes.Buffer
	for _, page := range topicPages(command) {
		require.Zero(t, cli.Run([]string{"help", page}, nil, &out, &out, All...))
	}
	return out.String()
}

// flagsOf is the help of a command from its flags on.
func flagsOf(t *testing.T, command string) string {
	var out bytes.Buffer
	require.Zero(t, cli.Run([]string{command, "--help"}, nil, &out, &out, All...))
	_, text, found := strings.Cut(out.String(), "\n\nFlags:\n")
	assert.True(t, found, command)
	return text
}

// TestHelpIsAsWideAsATerminal: no line of any command's help wraps in a terminal of 80 columns.
func TestHelpIsAsWideAsATerminal(t *testing.T) {
	pages := [][]string{{"--help"}, {"help", "help"}, {"help", "inputs"}}
	for _, command := range All {
		pages = append(pages, []string{command.Name, "--help"})
		for _, page := range topicPages(command) {
			pages = append(pages, []string{"help", page})
		}
	}
	for _, args := range pages {
		var out bytes.Buffer
		assert.Zero(t, cli.Run(args, nil, &out, &out, All...), args)
		assert.Regexp(t, `(?m)^(Usage:\n  )?gpumemtrack `, out.String())
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSuffix(line, "\n")
			assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, "%s: %s", args[0], line)
			assert.Equal(t, strings.TrimRight(line, " "), line, args[0])
		}
	}
}

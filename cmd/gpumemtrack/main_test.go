package main

import (
	"bytes"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

func TestEveryCommandHasAnExample(t *testing.T) {
	for _, command := range commands {
		cmd := command(&cli.App{})
		assert.NotEmpty(t, cmd.Example, cmd.Name())
		assert.NotEmpty(t, cmd.Short, cmd.Name())
	}
}

// gorgonia.org/cu ends a program from its init where no device answers: the program must not
// link it, whatever tag it is built with.
func TestLinksNoGorgonia(t *testing.T) {
	out, err := exec.Command("go", "list", "-tags", "cuda", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "github.com/gpumemtrack/gpumemtrack/alloc/cuda\n")
	require.NotContains(t, string(out), "gorgonia.org/cu")
}

// Every flag with a value says in capitals what the value is, and nothing in Go's words.
func TestFlagsNameTheirValues(t *testing.T) {
	for _, command := range commands {
		cmd := command(&cli.App{})
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			name, _ := pflag.UnquoteUsage(f)
			if f.Value.Type() != "bool" {
				assert.Equal(t, strings.ToUpper(name), name, "%s --%s", cmd.Name(), f.Name)
				assert.NotEmpty(t, name, "%s --%s", cmd.Name(), f.Name)
			}
		})
	}
}

// named is the command of this name.
func named(t *testing.T, name string) *cobra.Command {
	for _, command := range commands {
		if cmd := command(&cli.App{}); cmd.Name() == name {
			return cmd
		}
	}
	require.Fail(t, "there is no command", name)
	return nil
}

// Flags with a choice of words complete them.
func TestFlagsWithAChoiceComplete(t *testing.T) {
	for command, flags := range map[string][]string{
		"show": {"by", "of", "at", "kind"}, "diff": {"by", "of", "at", "kind"}, "record": {"source", "with"}, "sensors": {"source"}, "replay": {"allocator"}, "layers": {"sort"},
		"estimate": {"optimizer", "optimizer-form", "gpu", "offload", "zero-grad", "dtype", "autocast", "kv", "zero"},
	} {
		cmd := named(t, command)
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
	for _, command := range commands {
		cmd := command(&cli.App{})
		text := flagsOf(t, cmd.Name()) + topicsOf(t, cmd)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			found := regexp.MustCompile(`(?m)^ .{5}--`+f.Name+`( |\[|$)`).FindAllString(text, -1)
			assert.Len(t, found, 1, "%s --%s", cmd.Name(), f.Name)
		})
	}
	assert.Contains(t, topicsOf(t, named(t, "estimate")), "llama.cpp\n\nFlags:\n")
}

// topicPages are the names of a command's pages of help beside its own.
func topicPages(cmd *cobra.Command) []string {
	var pages []string
	for _, name := range strings.Fields(cmd.Annotations["topic"]) {
		pages = append(pages, cmd.Name()+"-"+name)
	}
	return pages
}

// topicsOf are the texts of these pages.
func topicsOf(t *testing.T, cmd *cobra.Command) string {
	var out bytes.Buffer
	for _, page := range topicPages(cmd) {
		require.Zero(t, cli.Run([]string{"help", page}, nil, &out, &out, commands...))
	}
	return out.String()
}

// flagsOf is the help of a command from its flags on.
func flagsOf(t *testing.T, command string) string {
	var out bytes.Buffer
	require.Zero(t, cli.Run([]string{command, "--help"}, nil, &out, &out, commands...))
	_, text, found := strings.Cut(out.String(), "\n\nFlags:\n")
	assert.True(t, found, command)
	return text
}

// TestHelpIsAsWideAsATerminal: no line of any command's help wraps in a terminal of 80 columns.
func TestHelpIsAsWideAsATerminal(t *testing.T) {
	pages := [][]string{{"--help"}, {"help", "help"}}
	for _, command := range commands {
		cmd := command(&cli.App{})
		pages = append(pages, []string{cmd.Name(), "--help"})
		for _, page := range topicPages(cmd) {
			pages = append(pages, []string{"help", page})
		}
	}
	for _, args := range pages {
		var out bytes.Buffer
		assert.Zero(t, cli.Run(args, nil, &out, &out, commands...), args)
		assert.Regexp(t, `(?m)^(Usage:\n  )?gpumemtrack `, out.String())
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSuffix(line, "\n")
			assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, "%s: %s", args[0], line)
			assert.Equal(t, strings.TrimRight(line, " "), line, args[0])
		}
	}
}

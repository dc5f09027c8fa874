package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/commands"
)

var date = time.Date(2026, 11, 28, 8, 0, 0, 0, time.UTC)

// TestEveryCommandHasItsPage: a page says what a command is for, how it is used, and what each flag means.
func TestEveryCommandHasItsPage(t *testing.T) {
	pages, err := manPages("v0.1.0", date)
	require.NoError(t, err)
	seen := 0
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		page := pages[name+".1"]
		require.NotEmpty(t, page, name)
		seen++
		assert.Contains(t, page, `"2026-11-28" "gpumemtrack v0.1.0" "User Commands"`, name)
		for _, section := range []string{"NAME\n" + name + ` - ` + cmd.Short, "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLE", "SEE ALSO"} {
			assert.Equal(t, 1, strings.Count(page, ".SH "+section+"\n"), "%s: %s", name, section)
		}
		cmd.InitDefaultHelpFlag()
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			text := regexp.MustCompile(`(?m)^\.TP\n.*\\fB--`+f.Name+`\\fP([=[].*[^=])?\n\S.{5}`).FindAllString(page, -1)
			assert.Len(t, text, 1, "%s --%s", name, f.Name)
		})
		assert.NotContains(t, page, "\t", "%s: all options are tagged paragraphs", name)
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	root := new(cli.App).Root(commands.All...)
	root.InitDefaultHelpCmd()
	check(root)
	assert.Len(t, pages, seen, "no page is of something else")
}

func TestPagesNameOthersThatExist(t *testing.T) {
	pages, err := manPages("", date)
	require.NoError(t, err)
	for name, page := range pages {
		for _, other := range regexp.MustCompile(`\\fB(gpumemtrack[a-z-]*)\(1\)`).FindAllStringSubmatch(page, -1) {
			assert.Contains(t, pages, other[1]+".1", name)
		}
	}
}

func TestPagesAreReproducible(t *testing.T) {
	first, err := manPages("v0.1.0", date)
	require.NoError(t, err)
	second, err := manPages("v0.1.0", date.Add(time.Hour))
	require.NoError(t, err)
	assert.Equal(t, first, second)

	of, err := sourceDate("1764288000", date)
	require.NoError(t, err)
	assert.Equal(t, "2025-11-28T00:00:00Z", of.Format(time.RFC3339))
	of, err = sourceDate("", date)
	require.NoError(t, err)
	assert.Equal(t, date, of)
	_, err = sourceDate("yesterday", date)
	assert.ErrorContains(t, err, "SOURCE_DATE_EPOCH")
}

func TestTextsBecomeMarkdown(t *testing.T) {
	assert.Equal(t, "a\\_b, see:\n\n```\n  c_d\n\n  e\n\n\n```\nf\\[0\\]\n", markdown("a_b, see:\n  c_d\n\n  e\n\nf[0]"))
}

func TestFilesOfAPackage(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, writeMan(filepath.Join(dir, "man"), "", date))
	require.NoError(t, writeCompletions(filepath.Join(dir, "completions")))
	for _, name := range []string{
		"man/gpumemtrack.1", "man/gpumemtrack-estimate-list.1",
		"completions/gpumemtrack.bash", "completions/_gpumemtrack", "completions/gpumemtrack.fish", "completions/gpumemtrack.ps1",
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Contains(t, string(text), "gpumemtrack", name)
	}
}

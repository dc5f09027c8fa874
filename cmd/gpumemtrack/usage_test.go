package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
)

// Each flag of a command stands in its help once, under a heading if it has one.
func TestHelpHasEachFlagOnce(t *testing.T) {
	for _, command := range commands {
		cmd := command(&app{})
		text := flagUsages(cmd.LocalFlags())
		assert.True(t, strings.HasPrefix(text, "Flags:\n"), cmd.Name())
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			found := regexp.MustCompile(`(?m)^ .{5}--`+f.Name+`( |$)`).FindAllString(text, -1)
			assert.Len(t, found, 1, "%s --%s", cmd.Name(), f.Name)
		})
	}
	text := flagUsages(estimateCommand(&app{}).LocalFlags())
	_, ofLlama, found := strings.Cut(text, "\n\nFlags of llama.cpp:\n")
	assert.True(t, found)
	assert.Less(t, strings.Index(ofLlama, "--gpu-layers"), strings.Index(ofLlama, "\n\nFlags of "))
}

// TestHelpIsAsWideAsATerminal: no line of any command's help wraps in a terminal of 80 columns.
func TestHelpIsAsWideAsATerminal(t *testing.T) {
	pages := [][]string{{"--help"}, {"help", "help"}}
	for _, command := range commands {
		pages = append(pages, []string{command(&app{}).Name(), "--help"})
	}
	for _, args := range pages {
		var out bytes.Buffer
		assert.Zero(t, run(args, nil, &out, &out), args)
		assert.Contains(t, out.String(), "Usage:\n  gpumemtrack")
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSuffix(line, "\n")
			assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, "%s: %s", args[0], line)
			assert.Equal(t, strings.TrimRight(line, " "), line, args[0])
		}
	}
}

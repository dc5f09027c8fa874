package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

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

package main

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadme runs the program in a time that waits for nobody, and finds in the
// README what it prints.
func TestReadme(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		require.NoError(t, run(&out))
		readme, err := os.ReadFile("../../README.md")
		require.NoError(t, err)
		_, shown, _ := strings.Cut(string(readme), "```\nAfter ")
		shown, _, _ = strings.Cut("After "+shown, "```\n")
		assert.Equal(t, shown, strings.ReplaceAll(out.String(), "leak.(*server)", "main.(*server)"))
	})
}

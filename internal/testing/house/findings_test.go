package house

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFindingsSayWhatTheyAre: each script of findings/ has the comments that findings/README.md asks for, in order.
func TestFindingsSayWhatTheyAre(t *testing.T) {
	scripts, err := filepath.Glob(filepath.Join(root, "findings", "*.sh"))
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	for _, script := range scripts {
		text, err := os.ReadFile(script)
		require.NoError(t, err)
		assert.Regexp(t, `(?s)^#!/usr/bin/env bash\n# Guess: .+\n# Version: .+\n# Behaviour: .+\n# Seen: .+\n# Source: .+\n# Why: .+\nset -eu\n`, string(text), script)
	}
}

package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	require.NoError(t, run(dir, 0, &out))
	assert.Regexp(t, `\[0\] -> memory used: min=.*\[MB\] / max=.*\[MB\]\n\d+ samples in `, out.String())
	assert.FileExists(t, filepath.Join(dir, "memory.png"))
	assert.FileExists(t, filepath.Join(dir, "memory.jsonl"))
}

package userfile

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDrafts: a program that ends in the middle of a Write finds the file that it began, and of a Write that is over nothing.
func TestDrafts(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, Write(filepath.Join(dir, "a"), false, func(w io.Writer) error {
		_, err := io.WriteString(w, "half")
		require.NoError(t, err)
		assert.Len(t, drafts.names, 1)
		for name := range drafts.names {
			assert.FileExists(t, name)
		}
		return err
	}))
	assert.Empty(t, drafts.names)

	var ending draftSet
	left := filepath.Join(dir, "draft")
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	ending.begin(left)
	ending.begin(filepath.Join(dir, "not made yet"))
	ending.remove()
	assert.NoFileExists(t, left)
	assert.FileExists(t, filepath.Join(dir, "a"))
}

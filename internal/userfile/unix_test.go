//go:build unix

package userfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestANamedPipeIsNotWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skipf("no named pipe can be made here: %v", err)
	}
	_, err := Open(path)
	assert.ErrorContains(t, err, "is a named pipe")
	assert.ErrorContains(t, Write(path, true, text("x")), "not a regular file")
}

func TestTheUmaskHolds(t *testing.T) {
	before := syscall.Umask(0o077)
	defer syscall.Umask(before)
	dir := t.TempDir()
	require.NoError(t, create(filepath.Join(dir, "a"), false, "x"))
	require.NoError(t, Write(filepath.Join(dir, "b"), false, text("x")))
	for _, name := range []string{"a", "b"} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
	}
}

package userfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/smalldisk"
)

func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	l, err := CreateLog(path, false)
	require.NoError(t, err)
	for _, line := range []string{"one\n", "two\n"} {
		_, err := l.Write([]byte(line))
		require.NoError(t, err)
	}
	holds(t, path, "one\ntwo\n")
	require.NoError(t, l.Close())
	_, err = CreateLog(path, false)
	require.ErrorIs(t, err, fs.ErrExist)

	l, err = CreateLog(path, true)
	require.NoError(t, err)
	require.NoError(t, l.Discard())
	assert.NoFileExists(t, path)
}

// TestLogOnAFullDisk: the record that does not fit leaves no part behind, and what follows, though it would fit, is not
// written either.
func TestLogOnAFullDisk(t *testing.T) {
	path := filepath.Join(smalldisk.Dir(t, 64<<10), "a.jsonl")
	l, err := CreateLog(path, false)
	require.NoError(t, err)
	_, err = l.Write([]byte("one\n"))
	require.NoError(t, err)
	_, failure := l.Write([]byte(strings.Repeat("x", 1<<20) + "\n"))
	require.ErrorContains(t, failure, path)
	_, err = l.Write([]byte("three\n"))
	require.ErrorIs(t, err, failure)
	require.ErrorIs(t, l.Close(), failure)
	holds(t, path, "one\n")
}

func TestLogThatIsRemoved(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be removed")
	}
	dir := filepath.Join(t.TempDir(), "folder")
	require.NoError(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "a")
	l, err := CreateLog(path, false)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	_, err = l.Write([]byte("one\n"))
	require.NoError(t, err, "no write notices")
	require.ErrorContains(t, l.Close(), path+": the file was removed while it was written")

	path = filepath.Join(t.TempDir(), "b")
	l, err = CreateLog(path, false)
	require.NoError(t, err)
	require.NoError(t, os.Rename(path, path+".1"))
	require.NoError(t, l.Close(), "nothing is lost")
}

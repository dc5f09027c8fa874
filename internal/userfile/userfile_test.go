package userfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func create(path string, overwrite bool, s string) error {
	f, err := Create(path, overwrite)
	if err != nil {
		return err
	}
	return errors.Join(text(s)(f), f.Close())
}

func holds(t *testing.T, path, want string) {
	t.Helper()
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, want, string(have))
}

func TestNewFiles(t *testing.T) {
	ways := map[string]func(path string, overwrite bool, s string) error{
		"Create": create,
		"Write":  func(path string, overwrite bool, s string) error { return Write(path, overwrite, text(s)) },
	}
	for name, put := range ways {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, other, link := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "link")
			require.NoError(t, put(path, false, "one"))
			assert.ErrorIs(t, put(path, false, "two"), fs.ErrExist)
			holds(t, path, "one")
			require.NoError(t, put(path, true, "two"))
			holds(t, path, "two")

			require.NoError(t, put(other, false, "other's"))
			if os.Symlink(other, link) == nil {
				assert.ErrorIs(t, put(link, false, "x"), fs.ErrExist)
				require.NoError(t, put(link, true, "mine"))
				holds(t, other, "other's")
				holds(t, link, "mine")
			}
			assert.ErrorContains(t, put(dir, true, "x"), "not a regular file")
			err := put(filepath.Join(dir, "no", "such.html"), false, "x")
			assert.ErrorContains(t, err, filepath.Join("no", "such.html"))
			assert.NotContains(t, err.Error(), ".tmp")
			left, err := filepath.Glob(filepath.Join(dir, ".*"))
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}

func TestAFileThatCannotBeMadeWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	require.NoError(t, create(path, false, "before"))
	boom := errors.New("boom")
	err := Write(path, true, func(w io.Writer) error { io.WriteString(w, "half"); return boom })
	assert.ErrorIs(t, err, boom)
	holds(t, path, "before")
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	_, err := Open(path)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, create(path, false, "x"))
	f, err := Open(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

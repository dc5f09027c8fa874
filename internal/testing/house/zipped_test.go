package house

import (
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTheProgramCarriesTheFilesThatAreRead: beside a compressed file is the one that people read and change, and both are the same.
func TestTheProgramCarriesTheFilesThatAreRead(t *testing.T) {
	compared := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		want, missing := os.ReadFile(strings.TrimSuffix(path, ".gz"))
		if err != nil || !strings.HasSuffix(path, ".gz") || missing != nil {
			return err
		}
		file, err := os.Open(path)
		require.NoError(t, err)
		defer file.Close()
		zip, err := gzip.NewReader(file)
		require.NoError(t, err, path)
		got, err := io.ReadAll(zip)
		require.NoError(t, err, path)
		assert.True(t, string(want) == string(got), "%s is another: run go generate in its folder", path)
		compared++
		return nil
	}))
	assert.NotZero(t, compared)
}

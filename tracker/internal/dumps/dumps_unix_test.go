//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package dumps

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAnUnfinishedFileStaysAsLongAsItsWriterLives, however long it writes nothing, and goes with it.
func TestAnUnfinishedFileStaysAsLongAsItsWriterLives(t *testing.T) {
	dir := t.TempDir()
	f, err := createTemp(dir)
	require.NoError(t, err)
	defer f.Close()
	require.NotNil(t, f.lock)
	before := time.Now().Add(-10 * abandonedAfter)
	require.NoError(t, os.Chtimes(f.Name(), before, before))
	DeleteAbandoned(dir)
	require.FileExists(t, f.Name())

	f.unlock() // as the end of the process does
	now := time.Now()
	require.NoError(t, os.Chtimes(f.Name(), now, now))
	DeleteAbandoned(dir)
	assert.NoFileExists(t, f.Name())
	DeleteAbandoned(dir + "/missing")
}

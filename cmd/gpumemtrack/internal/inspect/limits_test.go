package inspect

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// TestFilesAboveALimit: every command that reads files has both limits, and its error says which flag raises the one that was
// reached, and to what.
func TestFilesAboveALimit(t *testing.T) {
	info, err := os.Stat(recorded)
	require.NoError(t, err)
	for _, args := range [][]string{
		{"show"}, {"show", "--web"}, {"show", recorded}, {"diff", recorded}, {"leaks"}, {"layers"}, {"explain"}, {"replay"}, {"convert", "-o", filepath.Join(t.TempDir(), "a.html")},
	} {
		for _, test := range [][]string{
			{"--max-memory", "1KiB", `too large: what the file holds takes more than 1024 bytes of memory: raise --max-memory, the whole file takes about \d`},
			{"--max-file", "1KiB", `too large: the file has more than 1024 bytes: raise --max-file, the whole file takes about ` + regexp.QuoteMeta(alloc.Bytes(info.Size()).String())},
		} {
			_, errs, code := runs(t, "", append(append(slices.Clone(args), test[:2]...), recorded)...)
			assert.Equal(t, 1, code, args)
			assert.Regexp(t, test[2], errs, args)
		}
	}
}

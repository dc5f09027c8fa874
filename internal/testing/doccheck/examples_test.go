package doccheck_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPackagesHaveOverviewAndExample: go doc tells what a package is for, and shows a use.
func TestPackagesHaveOverviewAndExample(t *testing.T) {
	folders := make(map[string]string) // the package comment by folder
	for path, file := range files(t) {
		folders[filepath.Dir(path)] += file.Doc.Text()
	}
	for folder, overview := range folders {
		assert.Regexp(t, `^Package \w+ \w+`, overview, folder)
		tests, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		require.NoError(t, err)
		example := false
		for _, test := range tests {
			text, err := os.ReadFile(test)
			require.NoError(t, err)
			example = example || regexp.MustCompile(`(?m)^func Example`).Match(text)
		}
		assert.True(t, example, "%s has no example", folder)
	}
}

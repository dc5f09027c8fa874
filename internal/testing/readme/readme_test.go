// Package readme_test checks README.md and the pages of docs against the code that they show.
package readme_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSnippetsCompile finds each line of the pages' Go code in a file that the compiler
// has seen: this package's, or the examples of package cucontext, of GoMLX, and of a device.
func TestSnippetsCompile(t *testing.T) {
	var compiled strings.Builder
	for _, file := range []string{"snippets_test.go", "../../../tracker/cucontext/example_test.go",
		"../../../contrib/gomlx/example_test.go", "../../../contrib/gomlx/examples/leak/main.go", "../../../contrib/llama/example_test.go",
		"../../../examples/first/main.go", "../../../examples/hip/hip.go", "../../../examples/hip/main_test.go"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		compiled.Write(text)
	}
	squeeze := regexp.MustCompile(`\s+|//.*`)
	code := squeeze.ReplaceAllString(compiled.String(), "")
	for _, p := range pages(t) {
		if filepath.Base(p.path) == "notebook.md" {
			continue // see TestNotebook
		}
		for _, b := range p.blocks("go") {
			for _, line := range p.lines[b.first:b.last] {
				assert.True(t, strings.Contains(code, squeeze.ReplaceAllString(line, "")), "%s: %q is not compiled anywhere", p.path, line)
			}
		}
	}
}

// lookAtAllFiles has go test run a test again when a file of the project has
// changed. It keeps the result for the files that the test looked at, and does not
// see those of the go command.
func lookAtAllFiles(t *testing.T) {
	t.Helper()
	require.NoError(t, filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		return err
	}))
}

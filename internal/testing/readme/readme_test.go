// Package readme_test checks README.md and the pages of docs against the code that they show.
package readme_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
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

// TestSecondCommand makes the README's second command run the tests of the modules inside
// this one too: internal/tests and those of contrib, which keep what they need out of go.mod. Those
// of the command line are never taken from go test's cache: it does not see that
// they build the command. They are not vetted here, which would be another tenth of the time with an empty cache:
// .ci/run does. What they skip is skipped here, so that it is named.
func TestSecondCommand(t *testing.T) {
	t.Parallel() // it waits for other programs
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command here")
	}
	lookAtAllFiles(t)
	for _, module := range []string{"../../tests", "../../../contrib/otel", "../../../contrib/gomlx", "../../../contrib/llama", "../../../contrib/tensor"} {
		cmd := exec.Command("go", "test", "-json", "-count=1", "-vet=off", "./...")
		cmd.Dir = module
		out, err := cmd.Output()
		output := make(map[string]string) // by package and test
		for line := range bytes.Lines(out) {
			var e struct{ Action, Package, ImportPath, Test, Output string }
			require.NoError(t, json.Unmarshal(line, &e), "%s", line)
			of := e.Package + e.ImportPath + " " + e.Test
			output[of] += e.Output
			switch {
			case e.Action == "skip" && e.Test != "" && strings.Count(e.Test, "/") < 2: // deeper are those of GoMLX's own suite
				t.Run(e.Test, func(t *testing.T) { t.Skip(output[of]) })
			case e.Action == "fail", e.Action == "build-fail":
				t.Error(output[of])
			}
		}
		require.NoError(t, err)
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

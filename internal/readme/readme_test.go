// Package readme_test holds README.md against the code that it shows.
package readme_test

import (
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

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	return string(text)
}

// blocks returns what stands between ```language and ```.
func blocks(text, language string) []string {
	var found []string
	for _, part := range strings.Split(text, "\n```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		found = append(found, block)
	}
	return found
}

// TestSnippetsCompile finds each line of the README's Go code in a file that the
// compiler has seen: this package's, or the example of package cucontext.
func TestSnippetsCompile(t *testing.T) {
	var compiled strings.Builder
	for _, file := range []string{"snippets_test.go", "../../tracker/cucontext/example_test.go"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		compiled.Write(text)
	}
	squeeze := regexp.MustCompile(`\s+|//.*`)
	code := squeeze.ReplaceAllString(compiled.String(), "")
	snippets := blocks(readme(t), "go")
	require.NotEmpty(t, snippets)
	for _, snippet := range snippets {
		for line := range strings.Lines(snippet) {
			assert.Contains(t, code, squeeze.ReplaceAllString(line, ""), "%q is not compiled anywhere", line)
		}
	}
}

// TestFirstCommand runs the README's first command and compares what it prints,
// but for the time.
func TestFirstCommand(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command here")
	}
	t.Setenv("GPUMEMTRACK_DEVICE", "sim")
	lookAtAllFiles(t)
	out, err := exec.Command("go", "run", "../../examples/vgg19", "-dir", t.TempDir()).Output()
	require.NoError(t, err)
	time := regexp.MustCompile(`\d\d-[A-Z][a-z]{2}-\d\d-\d\d:\d\d:\d\d`)
	want := blocks(readme(t), "text")[0]
	assert.Equal(t, time.ReplaceAllString(want, "NOW"), time.ReplaceAllString(strings.TrimSpace(string(out)), "NOW"))
}

// TestSecondCommand makes the README's second command run the tests of the modules inside
// this one too: internal/tests and tracker/export/otel, which keep what they need out of go.mod. Those
// of the command line are never taken from go test's cache: it does not see that
// they build the command.
func TestSecondCommand(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command here")
	}
	lookAtAllFiles(t)
	for _, module := range []string{"../tests", "../../tracker/export/otel"} {
		cmd := exec.Command("go", "test", "-count=1", "./...")
		cmd.Dir = module
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// lookAtAllFiles has go test run a test again when a file of the project has
// changed. It keeps the result for the files that the test looked at, and does not
// see those of the go command.
func lookAtAllFiles(t *testing.T) {
	t.Helper()
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		return err
	}))
}

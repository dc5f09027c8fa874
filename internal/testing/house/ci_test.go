package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWhatRunsOnce: the tests that .ci/run leaves out under the race detector exist, and none of them has two goroutines,
// but for those that wait for other programs.
func TestWhatRunsOnce(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".ci", "run"))
	require.NoError(t, err)
	once := regexp.MustCompile(`(?m)^once='([A-Za-z|]+)'$`).FindSubmatch(text)
	require.NotNil(t, once)
	names := strings.Split(string(once[1]), "|")
	found := make(map[string]bool)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !slices.Contains(names, f.Name.Name) {
				continue
			}
			found[f.Name.Name] = true
			assert.False(t, startsGoroutine(f) && !startsPrograms(file), "%s: %s has goroutines", path, f.Name)
		}
		return nil
	}))
	for _, name := range names {
		assert.True(t, found[name], "no such test: %s", name)
	}
}

// startsGoroutine reports whether a function says go, or runs beside other tests.
func startsGoroutine(f *ast.FuncDecl) (starts bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			starts = true
		case *ast.SelectorExpr:
			starts = starts || n.Sel.Name == "Go" || n.Sel.Name == "Parallel"
		}
		return !starts
	})
	return starts
}

// startsPrograms reports whether a file imports the package for that.
func startsPrograms(file *ast.File) bool {
	return slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"os/exec"` })
}

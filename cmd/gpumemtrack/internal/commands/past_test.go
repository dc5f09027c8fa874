package commands

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pastTheApp are functions and variables of other packages that write where package cli sees no error. A
// temporary file is no output: os.Rename would make it one.
var pastTheApp = map[string][]string{
	"os":       {"Stdout", "Stderr", "Create", "OpenFile", "WriteFile", "NewFile", "Rename"},
	"fmt":      {"Print", "Printf", "Println"},
	"log":      {"Print", "Printf", "Println", "Fatal", "Fatalf", "Fatalln", "New", "SetOutput"},
	"userfile": {"Create", "CreateLog", "Write"},
	"chart":    {"WriteFile"},
}

// TestNoCommandWritesPastTheApp: what a command prints goes to the App's streams, and a file is made by
// cli.WriteNew, cli.NewLog or App.SaveCharts. These are what the tests of outputs try on a full disk.
func TestNoCommandWritesPastTheApp(t *testing.T) {
	files := token.NewFileSet()
	checked := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"cli", "gendocs"}, d.Name()): // the App itself, and a generator that is no command
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		checked++
		ast.Inspect(file, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.SelectorExpr:
				if of, ok := x.X.(*ast.Ident); ok {
					assert.NotContains(t, pastTheApp[of.Name], x.Sel.Name, "%s: %s.%s", files.Position(x.Pos()), of.Name, x.Sel.Name)
				}
			case *ast.CallExpr:
				if of, ok := x.Fun.(*ast.Ident); ok {
					assert.NotContains(t, []string{"print", "println"}, of.Name, "%s", files.Position(x.Pos()))
				}
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	assert.Greater(t, checked, 20)
}

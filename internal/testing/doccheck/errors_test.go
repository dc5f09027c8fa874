// Package doccheck_test checks the documentation of all packages.
package doccheck_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestErrorsAreDocumented finds exported functions that return an error of which their
// comment says nothing.
func TestErrorsAreDocumented(t *testing.T) {
	named := regexp.MustCompile(`(?i)\berrors?\b|\bErr[A-Z]|Error\b`)
	for path, file := range files(t) {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && public(f) && returnsError(f.Type) && !(f.Recv != nil && wellKnown[f.Name.Name]) {
				assert.Regexp(t, named, f.Doc.Text(), "%s: %s", path, f.Name.Name)
			}
		}
	}
}

// wellKnown methods implement interfaces whose documentation has the errors: those of package
// encoding and encoding/json, and nn.Layer.
var wellKnown = map[string]bool{
	"MarshalJSON": true, "UnmarshalJSON": true, "MarshalText": true, "UnmarshalText": true, "AppendText": true,
	"Forward": true,
}

// files are the parsed files of all packages that users can import, by path.
func files(t *testing.T) map[string]*ast.File {
	t.Helper()
	all, fset := make(map[string]*ast.File), token.NewFileSet()
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name := d.Name(); path != "../../.." && (strings.HasPrefix(name, ".") || name == "internal" || name == "testdata" || name == "examples") {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err == nil && file.Name.Name != "main" {
			all[path] = file
		}
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

// public reports whether a function and its receiver are exported.
func public(f *ast.FuncDecl) bool {
	if f.Recv == nil || !f.Name.IsExported() {
		return f.Name.IsExported()
	}
	receiver := strings.TrimLeft(fmt.Sprint(expression(f.Recv.List[0].Type)), "*")
	return ast.IsExported(receiver)
}

// expression returns a receiver's type without pointers and type parameters.
func expression(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return expression(e.X)
	case *ast.IndexExpr:
		return expression(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func returnsError(f *ast.FuncType) bool {
	if f.Results == nil {
		return false
	}
	for _, result := range f.Results.List {
		if name, ok := result.Type.(*ast.Ident); ok && name.Name == "error" {
			return true
		}
	}
	return false
}

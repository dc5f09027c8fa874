package trackertest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryRuleHasItsChecks: the package's comment names checks of all eleven, and they are there.
func TestEveryRuleHasItsChecks(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	rule := regexp.MustCompile(`^// (\d+)\. `)
	checks, rules, at := make(map[string]int), []string(nil), ""
	for line := range strings.Lines(string(doc)) {
		if found := rule.FindStringSubmatch(line); found != nil {
			at = found[1]
			rules = append(rules, at)
		} else if name, ok := strings.CutPrefix(line, "//\t"); ok {
			checks[at]++
			requireCheck(t, strings.TrimSpace(name))
		}
	}
	require.Equal(t, strings.Fields("1 2 3 4 5 6 7 8 9 10 11"), rules)
	for _, at := range rules {
		assert.Positive(t, checks[at], "checks of %s", at)
	}
}

// requireCheck finds "Function" or "type.method" of this package, or "folder.Function".
func requireCheck(t *testing.T, name string) {
	t.Helper()
	folder, function := path.Split(name)
	qualifier, last, qualified := strings.Cut(function, ".")
	dir := filepath.Join("..", "..", "..", folder, qualifier)
	switch info, err := os.Stat(dir); {
	case !qualified:
		require.True(t, declared(t, ".", name), name)
	case err == nil && info.IsDir():
		require.True(t, declared(t, dir, last), name)
	default:
		require.True(t, declared(t, ".", function), name)
	}
}

// declared reports whether a folder's files have a function, or a method "type.method".
func declared(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && receiver(f)+f.Name.Name == name {
				return true
			}
		}
	}
	return false
}

// receiver returns "type." of a method.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if named, ok := of.(*ast.Ident); ok {
		return named.Name + "."
	}
	return ""
}

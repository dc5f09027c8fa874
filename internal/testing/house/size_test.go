package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	maxLines        = 600   // of a file
	maxMethodFiles  = 3     // files that have methods of one type
	longFunction    = 60    // lines
	maxLongFraction = 0.001 // of all functions
)

func TestFilesAreShort(t *testing.T) {
	for _, p := range packages(t) {
		for name, file := range p.files {
			path := p.path + "/" + name
			lines := p.set.Position(file.FileEnd).Line
			if longFiles[path] != "" {
				assert.Greater(t, lines, maxLines, "%s is short: take it off the list", path)
				continue
			}
			assert.LessOrEqual(t, lines, maxLines, "%s has %d lines: divide it by subject", path, lines)
		}
	}
	for path := range longFiles {
		assert.FileExists(t, filepath.Join(root, path))
	}
}

// TestMethodsStandTogether: who reads a type finds its methods in three files at most, on each platform.
func TestMethodsStandTogether(t *testing.T) {
	most := make(map[string]int)
	for _, platform := range append([]platform{reference}, platforms...) {
		all := mainModule(t, platform)
		for _, p := range packages(t) {
			l := all.packages[strings.TrimSuffix(module+p.path, "/")]
			if l == nil {
				continue
			}
			files := make(map[string]*ast.File)
			for _, name := range l.files() {
				files[name] = p.files[name]
			}
			for of, names := range methodFiles(files) {
				most[p.path+"."+of] = max(most[p.path+"."+of], len(names))
			}
		}
	}
	for of, n := range most {
		assert.LessOrEqual(t, n, maxMethodFiles, "%s has methods in %d files: merge them by subject", of, n)
	}
}

// methodFiles are the files that have methods of a type, by the type's name.
func methodFiles(files map[string]*ast.File) map[string][]string {
	of := make(map[string][]string)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, d := range files[name].Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			if t := receiver(f.Recv.List[0].Type); !slices.Contains(of[t], name) {
				of[t] = append(of[t], name)
			}
		}
	}
	return of
}

func TestMethodFiles(t *testing.T) {
	files := make(map[string]*ast.File)
	for i, text := range []string{"func (*T) A() {}\nfunc (T) B() {}", "func (T[X]) C() {}", "func (t *T[X, Y]) D() {}", "func (U) A() {}", "func F() {}"} {
		file, err := parser.ParseFile(token.NewFileSet(), "p.go", "package p\n"+text, parser.SkipObjectResolution)
		require.NoError(t, err)
		files[fmt.Sprint(i)] = file
	}
	assert.Equal(t, map[string][]string{"T": {"0", "1", "2"}, "U": {"3"}}, methodFiles(files))
}

func TestFunctionsFitOnAScreen(t *testing.T) {
	all, long := 0, []string(nil)
	for _, p := range packages(t) {
		for _, file := range p.files {
			n, names := longFunctions(p.set, file)
			all += n
			for _, name := range names {
				long = append(long, p.path+"."+name)
			}
		}
	}
	assert.LessOrEqual(t, float64(len(long)), maxLongFraction*float64(all), "%d of %d functions have more than %d lines: divide some of %v", len(long), all, longFunction, long)
}

// longFunctions counts the functions of a file and names the long ones.
func longFunctions(set *token.FileSet, file *ast.File) (all int, long []string) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			all++
			if set.Position(f.End()).Line-set.Position(f.Pos()).Line+1 > longFunction {
				long = append(long, f.Name.Name)
			}
		}
	}
	return all, long
}

func TestLongFunctions(t *testing.T) {
	body := func(lines int) string { return "{" + strings.Repeat("\n", lines-1) + "}\n" }
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", "package p\nfunc short() "+body(60)+"func long() "+body(61)+"type T struct "+body(70), parser.SkipObjectResolution)
	require.NoError(t, err)
	all, long := longFunctions(set, file)
	assert.Equal(t, 2, all)
	assert.Equal(t, []string{"long"}, long)
}

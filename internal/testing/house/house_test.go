// Package house has no code: its tests hold the structure of the module, so that each package can be
// read from the top.
package house

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
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

const (
	root   = "../../.."
	module = "github.com/gpumemtrack/gpumemtrack/"

	maxFiles = 30 // of a package, tests apart: it has one idea
	maxCycle = 6  // files that depend on each other both ways: a reader must know all of them at once
)

// goPackage is a package: a folder with its files, tests apart.
type goPackage struct {
	path  string // within the module
	files map[string]*ast.File
	set   *token.FileSet
}

// public reports whether any program can import the package.
func (r goPackage) public() bool {
	if strings.Contains("/"+r.path+"/", "/internal/") || strings.HasPrefix(r.path, "examples/") {
		return false
	}
	for _, file := range r.files {
		if file.Name.Name != "main" {
			return true
		}
	}
	return false
}

// packages are the packages of the module and of those nested in it.
func packages(t *testing.T) []goPackage {
	t.Helper()
	var all []goPackage
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
			return filepath.SkipDir
		}
		r := goPackage{path: filepath.ToSlash(strings.TrimPrefix(path, root+"/")), files: make(map[string]*ast.File), set: token.NewFileSet()}
		paths, err := filepath.Glob(filepath.Join(path, "*.go"))
		for _, p := range paths {
			if strings.HasSuffix(p, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(r.set, p, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			r.files[filepath.Base(p)] = file
		}
		if len(r.files) > 0 {
			all = append(all, r)
		}
		return err
	}))
	require.NotEmpty(t, all)
	return all
}

func TestPackagesHaveOneIdea(t *testing.T) {
	for _, r := range packages(t) {
		most := max(maxFiles, larger[r.path].files)
		assert.LessOrEqual(t, len(r.files), most,
			"%s has %d files: merge what cuts one subject into pieces, or move a subject to a package of its own", r.path, len(r.files))
	}
}

func TestFilesDependOneWay(t *testing.T) {
	for _, r := range packages(t) {
		most := max(maxCycle, larger[r.path].cycle)
		for _, cycle := range cycles(uses(t, r)) {
			assert.LessOrEqual(t, len(cycle), most,
				"%s: these files depend on each other in a cycle: move what goes up down, or merge what is one subject: %v", r.path, cycle)
		}
	}
}

// uses says which files of a package each of its files names something of, on this system.
func uses(t *testing.T, r goPackage) map[string]map[string]bool {
	t.Helper()
	found, err := build.ImportDir(filepath.Join(root, r.path), 0)
	if _, none := errors.AsType[*build.NoGoError](err); none {
		return nil
	}
	require.NoError(t, err, r.path)
	var files []*ast.File
	for _, name := range append(found.GoFiles, found.CgoFiles...) {
		files = append(files, r.files[name])
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	// What other packages declare is not known, which is an error at each use of it and changes nothing here:
	// no value of this package's types comes from there.
	conf := types.Config{Importer: unknown{}, Error: func(error) {}, FakeImportC: true}
	pkg, _ := conf.Check(module+r.path, r.set, files, info)
	fileOf := func(p token.Pos) string { return filepath.Base(r.set.Position(p).Filename) }
	arrows := make(map[string]map[string]bool)
	for name, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() {
			continue
		}
		from, to := fileOf(name.Pos()), fileOf(object.Pos())
		if arrows[from] == nil {
			arrows[from] = make(map[string]bool)
		}
		if from != to {
			arrows[from][to] = true
		}
	}
	return arrows
}

// unknown imports packages without a name in them.
type unknown struct{}

// Import implements types.Importer.
func (unknown) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, filepath.Base(path))
	p.MarkComplete()
	return p, nil
}

// cycles are the files that reach each other, as Tarjan's algorithm finds them.
func cycles(arrows map[string]map[string]bool) [][]string {
	var found [][]string
	var stack []string
	index, low, on := make(map[string]int), make(map[string]int), make(map[string]bool)
	var visit func(v string)
	visit = func(v string) {
		index[v] = len(index) + 1
		low[v] = index[v]
		stack, on[v] = append(stack, v), true
		for w := range arrows[v] {
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if on[w] {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] != index[v] {
			return
		}
		var cycle []string
		for {
			w := stack[len(stack)-1]
			stack, on[w] = stack[:len(stack)-1], false
			if cycle = append(cycle, w); w == v {
				break
			}
		}
		if len(cycle) > 1 {
			found = append(found, cycle)
		}
	}
	for v := range arrows {
		if index[v] == 0 {
			visit(v)
		}
	}
	return found
}

func TestCycles(t *testing.T) {
	arrows := map[string]map[string]bool{"a": {"b": true}, "b": {"c": true, "d": true}, "c": {"a": true}, "d": {}}
	found := cycles(arrows)
	require.Len(t, found, 1)
	assert.ElementsMatch(t, []string{"a", "b", "c"}, found[0])
}

// TestImportsGoOneWay holds what CONTRIBUTING.md says of imports.
func TestImportsGoOneWay(t *testing.T) {
	for _, r := range packages(t) {
		for _, rule := range rules {
			if !regexp.MustCompile(`^(?:` + rule.in + `)$`).MatchString(r.path) {
				continue
			}
			wrong := regexp.MustCompile(`^(?:` + rule.never + `)$`)
			for name, file := range r.files {
				for _, spec := range file.Imports {
					path, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
					assert.False(t, ours && wrong.MatchString(path), "%s/%s imports %s: %s", r.path, name, path, rule.why)
				}
			}
		}
	}
}

// TestModulesHaveAPurpose holds CONTRIBUTING.md's tables of the modules that this one and the nested ones require themselves.
func TestModulesHaveAPurpose(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	require.NoError(t, err)
	own, nested := tableOf(string(page), "| Module | What for |"), tableOf(string(page), "| Nested module | Module | What for |")
	assert.ElementsMatch(t, required(t, root), own)

	folders, err := filepath.Glob(filepath.Join(root, "*", "*", "go.mod"))
	require.NoError(t, err)
	deeper, err := filepath.Glob(filepath.Join(root, "*", "*", "*", "go.mod"))
	require.NoError(t, err)
	folders = append(folders, deeper...)
	var need []string
	for _, path := range folders {
		for _, name := range required(t, filepath.Dir(path)) {
			if !slices.Contains(own, name) && name+"/" != module {
				need = append(need, name)
			}
		}
	}
	assert.ElementsMatch(t, need, nested)
}

// required are the modules that a go.mod requires itself.
func required(t *testing.T, folder string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	require.NoError(t, err)
	for _, l := range regexp.MustCompile(`(?m)^(?:require )?\t?(\S+) v\S+( // indirect)?`).FindAllStringSubmatch(string(text), -1) {
		if l[2] == "" {
			names = append(names, l[1])
		}
	}
	return names
}

// tableOf returns the modules that a table of a page names.
func tableOf(page, head string) []string {
	_, table, _ := strings.Cut(page, head)
	table, _, _ = strings.Cut(table, "\n\n")
	return regexp.MustCompile(`[\w-]+\.[\w.]+/[\w./-]+`).FindAllString(table, -1)
}

func TestPackagesSayWhatTheyAreFor(t *testing.T) {
	says := regexp.MustCompile(`(?m)^[A-Z]\w+( \S+){3}`)
	never := regexp.MustCompile(`(?i)\b(never|not?|nothing|neither|without|only)\b`)
	for _, r := range packages(t) {
		text := ""
		for _, file := range r.files {
			text += file.Doc.Text()
		}
		assert.Regexp(t, says, text, "%s: its package comment must say in a sentence what it is for", r.path)
		if r.public() {
			assert.Regexp(t, never, text, "%s: its package comment must say what it never does, or does not know", r.path)
		}
	}
}

// receiver is the name of a method's type.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	}
	return ""
}

// The folder of a package that is gone must leave the tables too.
func TestLimitsNamePackages(t *testing.T) {
	for path := range larger {
		assert.DirExists(t, filepath.Join(root, path))
	}
	_, err := os.Stat(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
}

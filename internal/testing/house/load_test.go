package house

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// platform is what the go command builds for.
type platform struct {
	os, arch string
	tags     string // build tags
	cgo      bool
}

// String is the platform as an api file names it.
func (p platform) String() string {
	if p.tags != "" {
		return p.tags
	}
	return p.os + "/" + p.arch
}

// reference is the platform whose public names the api files list without a mark.
var reference = platform{os: "linux", arch: "amd64"}

// platforms are the others whose public names are compared with it.
var platforms = []platform{
	{os: "windows", arch: "amd64"},
	{os: "darwin", arch: "arm64"},
	{os: "linux", arch: "amd64", tags: "cuda", cgo: true},
}

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir, Name string
	GoFiles, CgoFiles     []string
	ImportMap             map[string]string
	Standard              bool
	Module                *struct {
		Path string
		Main bool
	}
}

// ours reports whether the package belongs to this module or to one nested in it.
func (l *listed) ours() bool {
	return l.Module != nil && strings.HasPrefix(l.Module.Path+"/", module)
}

// files are the names of its files, tests apart.
func (l *listed) files() []string { return slices.Concat(l.GoFiles, l.CgoFiles) }

// program is the packages of a module and what they import, checked from source for one platform. Function bodies are
// left out, and with them the packages that only bodies use: loading takes a second and compiles nothing.
type program struct {
	packages map[string]*listed
	checked  map[string]*types.Package
}

// What is parsed serves all platforms.
var (
	positions = token.NewFileSet()
	parsed    = make(map[string]*ast.File) // by path
)

// load lists the packages of the module in a folder. It downloads nothing: a package that is not in the module cache is
// one without a name in it.
func load(dir string, p platform) (*program, error) {
	args := []string{"list", "-e", "-deps", "-json=ImportPath,Dir,Name,GoFiles,CgoFiles,ImportMap,Standard,Module"}
	if p.tags != "" {
		args = append(args, "-tags", p.tags)
	}
	list := exec.Command("go", append(args, "./...")...)
	cgo := "CGO_ENABLED=0"
	if p.cgo {
		cgo = "CGO_ENABLED=1"
	}
	list.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, cgo, "GOPROXY=off", "GOFLAGS=-mod=readonly", "GOWORK=off")
	list.Dir = dir
	var stderr bytes.Buffer
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w: %s", dir, err, stderr.String())
	}
	all := &program{packages: make(map[string]*listed), checked: map[string]*types.Package{"unsafe": types.Unsafe}}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		l := new(listed)
		if err := d.Decode(l); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all.packages[l.ImportPath] = l
	}
}

// own are the import paths of this project's packages, sorted, but for those that are the same in another program.
func (p *program) own(but *program) (paths []string) {
	for path, l := range p.packages {
		if l.ours() && (but == nil || but.packages[path] == nil || !slices.Equal(l.files(), but.packages[path].files())) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// module is the path of the module that was loaded.
func (p *program) module() string {
	for _, l := range p.packages {
		if l.ours() && l.Module.Main {
			return l.Module.Path
		}
	}
	return ""
}

// check returns what a package declares.
func (p *program) check(path string) (*types.Package, error) {
	if known := p.checked[path]; known != nil {
		return known, nil
	}
	l := p.packages[path]
	if l == nil || l.Name == "" {
		return unknown{}.Import(path)
	}
	var files []*ast.File
	for _, name := range l.files() {
		path := filepath.Join(l.Dir, name)
		if parsed[path] == nil {
			file, err := parser.ParseFile(positions, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			p.dropUnused(l, file)
			parsed[path] = file
		}
		files = append(files, parsed[path])
	}
	conf := types.Config{
		Importer:         importer{p, l},
		IgnoreFuncBodies: true,
		FakeImportC:      true,
		Error:            func(error) {}, // of what only a body or the value of a variable needs
		Sizes:            types.SizesFor("gc", reference.arch),
	}
	pkg, _ := conf.Check(path, positions, files, nil)
	p.checked[path] = pkg
	return pkg, nil
}

// dropUnused removes the imports of a file that no declaration needs.
func (p *program) dropUnused(l *listed, file *ast.File) {
	used := make(map[string]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			return false // a function's body
		case *ast.SelectorExpr:
			if name, ok := n.X.(*ast.Ident); ok {
				used[name.Name] = true
			}
		}
		return true
	})
	file.Decls = slices.DeleteFunc(file.Decls, func(d ast.Decl) bool {
		imports, ok := d.(*ast.GenDecl)
		if !ok || imports.Tok != token.IMPORT {
			return false
		}
		imports.Specs = slices.DeleteFunc(imports.Specs, func(s ast.Spec) bool {
			spec := s.(*ast.ImportSpec)
			if spec.Name != nil {
				return spec.Name.Name != "." && !used[spec.Name.Name]
			}
			imported := p.packages[l.path(strings.Trim(spec.Path.Value, `"`))]
			return imported != nil && imported.Name != "" && !used[imported.Name]
		})
		return len(imports.Specs) == 0
	})
}

// path is the path of a package that this one imports by a name; the standard library has copies of some modules.
func (l *listed) path(imported string) string {
	if mapped := l.ImportMap[imported]; mapped != "" {
		return mapped
	}
	return imported
}

// importer brings a package what it imports.
type importer struct {
	of *program
	by *listed
}

// Import implements types.Importer.
func (i importer) Import(path string) (*types.Package, error) { return i.of.check(i.by.path(path)) }

// mainModule is the module at the root as it is for a platform, loaded once.
func mainModule(t *testing.T, p platform) *program {
	t.Helper()
	if loaded[p] == nil {
		all, err := load(root, p)
		require.NoError(t, err)
		loaded[p] = all
	}
	return loaded[p]
}

var loaded = make(map[platform]*program)

// source is a program of one package, written out.
func source(t *testing.T, text string) *types.Package {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", text, parser.SkipObjectResolution)
	require.NoError(t, err)
	conf := types.Config{Importer: unknown{}, Error: func(error) {}}
	pkg, _ := conf.Check(module+"p", set, []*ast.File{file}, nil)
	return pkg
}

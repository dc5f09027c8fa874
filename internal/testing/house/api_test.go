package house

import (
	"flag"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the lists of public names in api")

const apiFolder = root + "/api"

// TestAPI compares the public names of each package with its list in api: a change of what programs can name is seen in
// the commit that makes it. With -update it writes the lists.
func TestAPI(t *testing.T) {
	var written []string
	for _, dir := range modules(t) {
		for path, text := range apiOf(t, programsOf(t, dir)) {
			name := strings.ReplaceAll(path, "/", ".") + ".txt"
			written = append(written, name)
			if strings.Contains(text, "invalid type") {
				t.Logf("%s is left out: it needs modules that are not in the module cache", path)
				continue
			}
			if *update {
				require.NoError(t, os.MkdirAll(apiFolder, 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(apiFolder, name), []byte(text), 0o644))
				continue
			}
			kept, err := os.ReadFile(filepath.Join(apiFolder, name))
			require.NoError(t, err, "a new public package: write its list with go test ./internal/testing/house -update")
			assert.Equal(t, strings.ReplaceAll(string(kept), "\r\n", "\n"), text, "the public names of %s changed: if that is meant, run go test ./internal/testing/house -update", path)
		}
	}
	files, err := filepath.Glob(filepath.Join(apiFolder, "*.txt"))
	require.NoError(t, err)
	for _, path := range files {
		if slices.Contains(written, filepath.Base(path)) {
			continue
		}
		if *update {
			require.NoError(t, os.Remove(path))
			continue
		}
		assert.Fail(t, "no such package", "%s: run go test ./internal/testing/house -update", path)
	}
}

// modules are the folders of the module and of those in contrib, which have public packages.
func modules(t *testing.T) []string {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(root, "contrib", "*", "go.mod"))
	require.NoError(t, err)
	dirs := []string{"."}
	for _, path := range folders {
		dirs = append(dirs, filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), filepath.Clean(root)+string(filepath.Separator))))
	}
	return dirs
}

// programsOf are the packages of a module for the reference and, if it is the one at the root, for the other platforms.
func programsOf(t *testing.T, dir string) map[platform]*program {
	t.Helper()
	if dir != "." {
		p, err := load(filepath.Join(root, dir), reference)
		require.NoError(t, err)
		return map[platform]*program{reference: p}
	}
	all := map[platform]*program{reference: mainModule(t, reference)}
	for _, p := range platforms {
		all[p] = mainModule(t, p)
	}
	return all
}

// apiOf are the lists of a module's public packages, by their paths.
func apiOf(t *testing.T, programs map[platform]*program) map[string]string {
	t.Helper()
	lines := make(map[string]map[string][]string) // by package and name: its platforms
	for p, all := range programs {
		shown := newSurface(t, all)
		for _, pkg := range shown.packages {
			path := strings.TrimPrefix(pkg.Path(), module)
			for _, line := range shown.lines(pkg) {
				if lines[path] == nil {
					lines[path] = make(map[string][]string)
				}
				lines[path][line] = append(lines[path][line], p.String())
			}
		}
	}
	texts := make(map[string]string)
	for path, names := range lines {
		var text []string
		for line, on := range names {
			text = append(text, line+mark(on, len(programs) == 1))
		}
		slices.Sort(text)
		texts[path] = strings.Join(text, "\n") + "\n"
	}
	return texts
}

// mark says on which platforms a name is, unless it is on all of them.
func mark(on []string, one bool) string {
	slices.Sort(on)
	// The build tag adds names to those of the reference.
	if i := slices.Index(on, "cuda"); i >= 0 && len(on) > 1 {
		on = slices.Delete(on, i, i+1)
	}
	if one || len(on) == len(platforms) {
		return ""
	}
	return " // " + strings.Join(on, ", ")
}

// surface is what the users of a program's packages see.
type surface struct {
	packages []*types.Package
	named    map[string]string // the public alias of an internal type, as path.Name, by the type's own
}

func newSurface(t *testing.T, all *program) *surface {
	t.Helper()
	s := &surface{named: make(map[string]string)}
	for _, path := range all.own(nil) {
		l := all.packages[path]
		if !isPublic(path) || l.Name == "main" {
			continue
		}
		pkg, err := all.check(path)
		require.NoError(t, err)
		s.add(pkg)
		// The lists of a nested module leave out the packages that it requires.
		if l.Module.Path == all.module() {
			s.packages = append(s.packages, pkg)
		}
	}
	return s
}

// isPublic reports whether any program can import a package.
func isPublic(path string) bool {
	return !strings.Contains(path+"/", "/internal/") && !strings.HasPrefix(path, module+"examples/")
}

// add notes the aliases of a public package, by which users name internal types.
func (s *surface) add(pkg *types.Package) {
	for _, name := range pkg.Scope().Names() {
		of, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok || !of.IsAlias() || !of.Exported() {
			continue
		}
		if target, ok := types.Unalias(of.Type()).(*types.Named); ok && target.Obj().Pkg() != nil && !isPublic(target.Obj().Pkg().Path()) {
			s.named[target.Obj().Pkg().Path()+"."+target.Obj().Name()] = pkg.Path() + "." + name
		}
	}
}

// lines are the public names of a package, one a line.
func (s *surface) lines(pkg *types.Package) (lines []string) {
	scope := pkg.Scope()
	for _, name := range scope.Names() {
		o := scope.Lookup(name)
		if !o.Exported() {
			continue
		}
		switch o := o.(type) {
		case *types.Const:
			lines = append(lines, s.constant(pkg, o))
		case *types.Var:
			lines = append(lines, "var "+name+" "+s.text(pkg, o.Type()))
		case *types.Func:
			lines = append(lines, "func "+name+strings.TrimPrefix(s.text(pkg, o.Type()), "func"))
		case *types.TypeName:
			lines = append(lines, s.typeLines(pkg, o)...)
		}
	}
	return lines
}

func (s *surface) constant(pkg *types.Package, c *types.Const) string {
	line := "const " + c.Name()
	if b, ok := c.Type().(*types.Basic); !ok || b.Info()&types.IsUntyped == 0 {
		line += " " + s.text(pkg, c.Type())
	}
	return line + " = " + c.Val().ExactString()
}

// typeLines are a type, its fields and its methods. The members of an alias are listed if no other public package does.
func (s *surface) typeLines(pkg *types.Package, o *types.TypeName) []string {
	head := "type " + o.Name()
	if o.IsAlias() {
		target, named := types.Unalias(o.Type()).(*types.Named)
		if !named || isPublic(target.Obj().Pkg().Path()) {
			var of types.Type = target
			if !named {
				of = types.Unalias(o.Type())
			}
			return []string{head + " = " + s.text(pkg, of)}
		}
		return s.members(pkg, head+" = "+strings.TrimPrefix(target.Obj().Pkg().Path(), module)+"."+target.Obj().Name()+",", "type "+o.Name(), o.Name(), target)
	}
	named := o.Type().(*types.Named)
	return s.members(pkg, head+parameters(s, pkg, named), head, o.Name(), named)
}

// parameters are a generic type's own.
func parameters(s *surface, pkg *types.Package, of *types.Named) string {
	var list []string
	for p := range of.TypeParams().TypeParams() {
		list = append(list, p.Obj().Name()+" "+s.text(pkg, p.Constraint()))
	}
	if list == nil {
		return ""
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// members are the lines of a type: what it is, its fields and its methods.
func (s *surface) members(pkg *types.Package, declared, head, name string, of *types.Named) (lines []string) {
	switch u := of.Underlying().(type) {
	case *types.Struct:
		lines = append(lines, declared+" struct")
		lines = append(lines, s.fields(pkg, head, u)...)
	case *types.Interface:
		lines = append(lines, declared+" interface")
		return append(lines, s.methods(pkg, head, u)...)
	default:
		lines = append(lines, declared+" "+s.text(pkg, u))
	}
	values := types.NewMethodSet(of)
	for selected := range types.NewMethodSet(types.NewPointer(of)).Methods() {
		m := selected.Obj().(*types.Func)
		if !m.Exported() || !strings.HasPrefix(m.Pkg().Path()+"/", module) {
			continue // what an embedded type of another project has is listed by its name alone
		}
		receiver := name
		if values.Lookup(m.Pkg(), m.Name()) == nil {
			receiver = "*" + name
		}
		lines = append(lines, "method ("+receiver+") "+m.Name()+strings.TrimPrefix(s.text(pkg, selected.Type()), "func"))
	}
	return lines
}

// methods are what an interface asks for.
func (s *surface) methods(pkg *types.Package, head string, of *types.Interface) (lines []string) {
	sealed := false
	for m := range of.ExplicitMethods() {
		if sealed = sealed || !m.Exported(); m.Exported() {
			lines = append(lines, head+" interface, "+m.Name()+strings.TrimPrefix(s.text(pkg, m.Type()), "func"))
		}
	}
	if sealed {
		lines = append(lines, head+" interface, unexported methods")
	}
	for e := range of.EmbeddedTypes() {
		named, _ := types.Unalias(e).(*types.Named)
		if named != nil && named.Obj().Pkg() != nil && (!named.Obj().Exported() || !s.nameable(named)) {
			if inner, ok := named.Underlying().(*types.Interface); ok {
				lines = append(lines, s.methods(pkg, head, inner)...)
			}
			continue
		}
		lines = append(lines, head+" interface, embedded "+s.text(pkg, e))
	}
	return lines
}

// nameable reports whether users have a name for a type, its own or a public alias.
func (s *surface) nameable(t *types.Named) bool {
	path := t.Obj().Pkg().Path()
	return isPublic(path) || s.named[path+"."+t.Obj().Name()] != ""
}

// fields are the fields of a struct that a user can name. Those of an embedded type that has no public name stand in its place.
func (s *surface) fields(pkg *types.Package, head string, of *types.Struct) (lines []string) {
	for f := range of.Fields() {
		embedded := types.Unalias(f.Type())
		if p, ok := embedded.(*types.Pointer); ok {
			embedded = types.Unalias(p.Elem())
		}
		named, _ := embedded.(*types.Named)
		switch {
		case f.Embedded() && named != nil && (!f.Exported() || !s.nameable(named)):
			if f.Exported() {
				lines = append(lines, head+" struct, embedded "+s.text(pkg, f.Type()))
			}
			if inner, ok := named.Underlying().(*types.Struct); ok {
				lines = append(lines, s.fields(pkg, head, inner)...)
			}
		case !f.Exported():
		case f.Embedded():
			lines = append(lines, head+" struct, embedded "+s.text(pkg, f.Type()))
		default:
			lines = append(lines, head+" struct, "+f.Name()+" "+s.text(pkg, f.Type()))
		}
	}
	return lines
}

var qualified = regexp.MustCompile("\x00([^\x00]*)\x00\\.(\\w+)")

// text is a type as a user of a package writes it: an internal type goes by its public alias.
func (s *surface) text(pkg *types.Package, t types.Type) string {
	all := types.TypeString(t, func(p *types.Package) string { return "\x00" + p.Path() + "\x00" })
	return qualified.ReplaceAllStringFunc(all, func(name string) string {
		parts := qualified.FindStringSubmatch(name)
		path, name := parts[1], parts[2]
		if alias := s.named[path+"."+name]; alias != "" {
			i := strings.LastIndex(alias, ".")
			path, name = alias[:i], alias[i+1:]
		}
		if path == pkg.Path() {
			return name
		}
		return strings.TrimPrefix(path, module) + "." + name
	})
}

func TestSurface(t *testing.T) {
	pkg := source(t, `package p
type (
	S struct { A, b int; inner; E }
	inner struct { Promoted []string }
	E struct { Z bool }
	I interface { Do(n int) error; hidden(); J; k; error }
	J interface { More() }
	k interface { Inner() }
	F func(S) *S
	G[T any] struct { Of T }
	N = map[string]S
	h struct { X int }
)
const (
	K, l = 1, 2
	Typed Size = 3
)
type Size uint8
var V, w *S
func Func[T any](v ...T) (n int, err error) { return }
func (S) Value() {}
func (*S) Pointer(s Size) {}
func (S) private() {}
func (inner) Raised() {}
func (h) Lost() {}
`)
	lines := (&surface{}).lines(pkg)
	slices.Sort(lines)
	assert.Equal(t, strings.TrimSpace(`
const K = 1
const Typed Size = 3
func Func[T any](v ...T) (n int, err error)
method (*S) Pointer(s Size)
method (S) Raised()
method (S) Value()
type E struct
type E struct, Z bool
type F func(S) *S
type G struct, Of T
type G[T any] struct
type I interface
type I interface, Do(n int) error
type I interface, Inner()
type I interface, embedded J
type I interface, embedded error
type I interface, unexported methods
type J interface
type J interface, More()
type N = map[string]S
type S struct
type S struct, A int
type S struct, Promoted []string
type S struct, embedded E
type Size uint8
var V *S
`), strings.Join(lines, "\n"))
}

// An alias is the one name that users have for an internal type.
func TestSurfaceOfAliases(t *testing.T) {
	inner := types.NewPackage(module+"internal/q", "q")
	q := types.NewNamed(types.NewTypeName(0, inner, "Q", nil), types.NewStruct([]*types.Var{types.NewField(0, inner, "Next", types.Typ[types.Int], false)}, nil), nil)
	self := types.NewVar(0, inner, "q", types.NewPointer(q))
	q.AddMethod(types.NewFunc(0, inner, "Self", types.NewSignatureType(self, nil, nil, nil, types.NewTuple(types.NewVar(0, inner, "", types.NewPointer(q))), false)))
	pkg := types.NewPackage(module+"p", "p")
	pkg.Scope().Insert(types.NewTypeName(0, pkg, "Public", nil))
	alias := types.NewAlias(pkg.Scope().Lookup("Public").(*types.TypeName), q)
	pkg.Scope().Insert(types.NewVar(0, pkg, "V", alias))
	s := &surface{named: make(map[string]string)}
	s.add(pkg)
	assert.Equal(t, []string{
		"type Public = internal/q.Q, struct",
		"type Public struct, Next int",
		"method (*Public) Self() *Public",
		"var V Public",
	}, s.lines(pkg))
}

func TestMark(t *testing.T) {
	assert.Equal(t, "", mark([]string{"windows/amd64", "linux/amd64", "darwin/arm64", "cuda"}, false))
	assert.Equal(t, " // cuda", mark([]string{"cuda"}, false))
	assert.Equal(t, " // linux/amd64", mark([]string{"linux/amd64", "cuda"}, false))
	assert.Equal(t, " // darwin/arm64, windows/amd64", mark([]string{"windows/amd64", "darwin/arm64"}, false))
	assert.Equal(t, "", mark([]string{"linux/amd64"}, true))
}

package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNoUntypedHooks: a package-level variable that holds a function of any lets two packages call each other where the
// compiler, and a reader, see no dependency.
func TestNoUntypedHooks(t *testing.T) {
	var found []string
	var first *program
	for _, p := range append([]platform{reference}, platforms...) {
		all := mainModule(t, p)
		for _, path := range all.own(first) {
			pkg, err := all.check(path)
			require.NoError(t, err)
			for _, name := range untypedHooks(pkg) {
				found = append(found, strings.TrimPrefix(path, module)+"."+name)
			}
		}
		first = mainModule(t, reference)
	}
	slices.Sort(found)
	found = slices.Compact(found)
	assert.Empty(t, found, "these variables hold functions of any: declare the types, or move what they hide to where it is used")
}

// untypedHooks are the package-level variables of a package through which a function is reached that takes or returns any.
func untypedHooks(pkg *types.Package) (names []string) {
	scope := pkg.Scope()
	for _, name := range scope.Names() {
		v, ok := scope.Lookup(name).(*types.Var)
		if ok && reaches(v.Type(), hasAny) {
			names = append(names, name)
		}
	}
	return names
}

// reaches reports whether a type is, or holds, a function whose signature has a property. It follows aliases and this
// project's own types. Other projects' structs keep functions for purposes of their own, such as sync.Pool's New.
func reaches(t types.Type, property func(*types.Signature) bool) bool {
	seen := make(map[types.Type]bool)
	var walk func(t types.Type) bool
	walk = func(t types.Type) bool {
		if t == nil || seen[t] {
			return false
		}
		seen[t] = true
		switch t := t.(type) {
		case *types.Alias:
			return walk(types.Unalias(t))
		case *types.Named:
			for arg := range t.TypeArgs().Types() {
				if walk(arg) {
					return true
				}
			}
			_, function := t.Underlying().(*types.Signature)
			own := t.Obj().Pkg() != nil && strings.HasPrefix(t.Obj().Pkg().Path()+"/", module)
			return (own || function) && walk(t.Underlying())
		case *types.Signature:
			return property(t)
		case *types.Struct:
			for f := range t.Fields() {
				if walk(f.Type()) {
					return true
				}
			}
		case *types.Interface:
			for m := range t.Methods() {
				if walk(m.Type()) {
					return true
				}
			}
		case *types.Map:
			return walk(t.Key()) || walk(t.Elem())
		case interface{ Elem() types.Type }: // pointers, slices, arrays and channels
			return walk(t.Elem())
		}
		return false
	}
	return walk(t)
}

// hasAny reports whether a signature has the empty interface, itself or in another type.
func hasAny(s *types.Signature) bool {
	var is func(t types.Type) bool
	is = func(t types.Type) bool {
		switch t := types.Unalias(t).(type) {
		case *types.Interface:
			return t.Empty()
		case *types.Named:
			i, ok := t.Underlying().(*types.Interface)
			return ok && i.Empty()
		case *types.Signature:
			return hasAny(t)
		case *types.Map:
			return is(t.Key()) || is(t.Elem())
		case interface{ Elem() types.Type }:
			return is(t.Elem())
		}
		return false
	}
	for _, tuple := range []*types.Tuple{s.Params(), s.Results()} {
		for v := range tuple.Variables() {
			if is(v.Type()) {
				return true
			}
		}
	}
	return false
}

func TestUntypedHooks(t *testing.T) {
	found := untypedHooks(source(t, `package p
import "sync"
type (
	hook  = func(any)
	later = hook
	named func() interface{}
	table struct{ of map[string][]later }
	empty interface{}
	codec interface{ encode(v ...any) }
)
var (
	plain    func(any)
	inferred = func(int) any { return nil }
	aliased  later
	wrapped  *table
	own      named
	hidden   func(map[string][]empty)
	called   codec
	nested   func(func(any))
	typed    func(int) error
	pool     = sync.Pool{New: func() any { return 0 }}
	value    any
)
func f(v any) {}
`))
	assert.ElementsMatch(t, []string{"plain", "inferred", "aliased", "wrapped", "own", "hidden", "called", "nested"}, found)
}

// TestFunctionVariablesAreSetAtHome: a package whose behaviour another one replaces depends on it in secret.
func TestFunctionVariablesAreSetAtHome(t *testing.T) {
	all := mainModule(t, reference)
	isFunction := func(path, name string) bool {
		if all.packages[path] == nil || !all.packages[path].ours() {
			return false
		}
		pkg, err := all.check(path)
		require.NoError(t, err)
		v, ok := pkg.Scope().Lookup(name).(*types.Var)
		return ok && reaches(v.Type(), func(*types.Signature) bool { return true })
	}
	var found []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, name := range setElsewhere(file, isFunction) {
			found = append(found, strings.TrimPrefix(name, module))
		}
		return nil
	}))
	slices.Sort(found)
	found = slices.Compact(found)
	assert.Empty(t, found, "these function variables are set by another package: pass the function, or use an interface")
}

// setElsewhere are the variables of other packages that a file assigns, or takes the address of, and that hold a function.
func setElsewhere(file *ast.File, isFunction func(path, name string) bool) (names []string) {
	imports := importsOf(file)
	set := func(e ast.Expr) {
		for {
			switch x := e.(type) {
			case *ast.IndexExpr:
				e = x.X
				continue
			case *ast.StarExpr:
				e = x.X
				continue
			case *ast.ParenExpr:
				e = x.X
				continue
			case *ast.SelectorExpr:
				of, ok := x.X.(*ast.Ident)
				if !ok {
					e = x.X
					continue
				}
				if path := imports[of.Name]; path != "" && isFunction(path, x.Sel.Name) {
					names = append(names, path+"."+x.Sel.Name)
				}
			}
			return
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				set(e)
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				set(n.X)
			}
		}
		return true
	})
	return names
}

func TestSetElsewhere(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", `package p
import ("example.com/q"; r "example.com/other")
func init() {
	q.Hook = nil
	r.Table["x"] = nil
	q.Plain = 1
	q.Config.Run = nil
	install(&r.Pointer)
	q.Called()
	local.Hook = nil
}
`, parser.SkipObjectResolution)
	require.NoError(t, err)
	found := setElsewhere(file, func(_, name string) bool { return name != "Plain" })
	assert.ElementsMatch(t, []string{"example.com/q.Hook", "example.com/other.Table", "example.com/q.Config", "example.com/other.Pointer"}, found)
}

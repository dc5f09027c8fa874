package house

import (
	"go/ast"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestPublicNamesNeedNothingInternal: a type of an internal package cannot be named by who gets it, nor has it a page of
// documentation. So no public function, method, field or value has one, but by an alias that a public package gives it,
// and those in opaque.
func TestPublicNamesNeedNothingInternal(t *testing.T) {
	all := packages(t)
	known := make(map[string]bool)
	for _, r := range all {
		for _, file := range r.files {
			imports := importsOf(file)
			for _, s := range typeSpecs(file) {
				of, is := s.Type.(*ast.SelectorExpr)
				switch {
				case !s.Assign.IsValid():
				case is && r.public():
					known[nameOf(imports, of)] = true
				case !is && !r.public(): // a name of what can be written out, such as an interface
					known[module+r.path+"."+s.Name.Name] = true
				}
			}
		}
	}
	for _, r := range all {
		if !r.public() {
			continue
		}
		for file := range r.files {
			for where, name := range publicUses(r.files[file]) {
				assert.True(t, known[name] || opaque[strings.TrimPrefix(name, module)] != "", "%s/%s: %s has the type %s, which no other module can name", r.path, file, where, strings.TrimPrefix(name, module))
			}
		}
	}
}

// importsOf are the paths of the packages that a file imports, by the names that it has for them.
func importsOf(file *ast.File) map[string]string {
	imports := make(map[string]string)
	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = path
	}
	return imports
}

// nameOf is a name of another package, with its import path.
func nameOf(imports map[string]string, s *ast.SelectorExpr) string {
	if from, is := s.X.(*ast.Ident); is {
		return imports[from.Name] + "." + s.Sel.Name
	}
	return ""
}

// typeSpecs are the types that a file declares.
func typeSpecs(file *ast.File) (specs []*ast.TypeSpec) {
	for _, d := range file.Decls {
		if d, is := d.(*ast.GenDecl); is {
			for _, s := range d.Specs {
				if s, is := s.(*ast.TypeSpec); is {
					specs = append(specs, s)
				}
			}
		}
	}
	return specs
}

// publicUses are the types of internal packages that the public names of a file have, by those names.
func publicUses(file *ast.File) map[string]string {
	uses, imports := make(map[string]string), importsOf(file)
	var find func(where string, in ast.Node)
	find = func(where string, in ast.Node) {
		ast.Inspect(in, func(n ast.Node) bool {
			var members *ast.FieldList
			switch n := n.(type) {
			case *ast.StructType:
				members = n.Fields
			case *ast.InterfaceType:
				members = n.Methods
			case *ast.SelectorExpr:
				if name := nameOf(imports, n); strings.HasPrefix(name, module) && strings.Contains(strings.TrimPrefix(name, module), "internal/") {
					uses[where] = name
				}
			}
			if members == nil {
				return true
			}
			for _, f := range members.List {
				if _, embeds := n.(*ast.StructType); embeds && len(f.Names) == 0 {
					continue // api lists what the type that is embedded adds
				}
				if len(f.Names) == 0 || f.Names[0].IsExported() {
					find(where, f.Type)
				}
			}
			return false
		})
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type))) {
				find(d.Name.Name, d.Type)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					if s.Names[0].IsExported() && s.Type != nil {
						find(s.Names[0].Name, s.Type)
					}
				case *ast.TypeSpec:
					_, other := s.Type.(*ast.SelectorExpr)
					if s.Name.IsExported() && !(other && s.Assign.IsValid()) {
						find(s.Name.Name, s.Type)
					}
				}
			}
		}
	}
	return uses
}

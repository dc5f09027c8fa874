package house

import (
	"go/ast"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestHiddenStateIsNotPrinted: package fmt reads the hidden fields of a value that is printed, while others write them,
// unless the value says what to print. So a public type that hides fields has a String or is an error. Printing them
// beside their use is tested where they are made.
func TestHiddenStateIsNotPrinted(t *testing.T) {
	for _, r := range packages(t) {
		if !r.public() {
			continue
		}
		hidden, says := make(map[string]bool), make(map[string]bool)
		for _, file := range r.files {
			for _, d := range file.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv != nil && (d.Name.Name == "String" || d.Name.Name == "Error" || d.Name.Name == "Format") {
						says[receiver(d.Recv.List[0].Type)] = true
					}
				case *ast.GenDecl:
					for _, s := range d.Specs {
						if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() && hides(s.Type) {
							hidden[s.Name.Name] = true
						}
					}
				}
			}
		}
		for name := range hidden {
			assert.True(t, says[name] || silent[r.path+"."+name] != "", "%s.%s hides fields and has no String: fmt.Println would print them, while others write them", r.path, name)
		}
	}
}

// hides reports whether a type is a struct with fields that other packages cannot name.
func hides(t ast.Expr) bool {
	s, ok := t.(*ast.StructType)
	if !ok {
		return false
	}
	for _, f := range s.Fields.List {
		for _, name := range f.Names {
			if !name.IsExported() {
				return true
			}
		}
	}
	return false
}

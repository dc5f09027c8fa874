package symbols

import (
	"debug/dwarf"
	"debug/elf"

	"github.com/ianlancetaylor/demangle"
)

// ReturnsNothing reports whether the function with a name (see Offsets) returns nothing, or a struct,
// according to its file, so that the result register is meaningless. The mangled name of a C++ template or
// DWARF says so.
func ReturnsNothing(path, name string) bool {
	file, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	wanted, l := wantedNames([]string{name}), openLines(file)
	for _, s := range functionSymbols(file) {
		if _, ok := wanted.of(s.name); ok && (namesNothing(s.name) || l != nil && l.returnsNothing(s.start)) {
			return true
		}
	}
	return false
}

// namesNothing reports whether a mangled name includes the return type, as those of templates do, and that
// is void or a template, so not a number.
func namesNothing(name string) bool {
	tree, err := demangle.ToAST(name)
	if err != nil {
		return false
	}
	its, ok := tree.(*demangle.Typed)
	if !ok {
		return false
	}
	function, ok := its.Type.(*demangle.FunctionType)
	if !ok {
		return false
	}
	switch returned := function.Return.(type) {
	case *demangle.BuiltinType:
		return returned.Name == "void"
	case *demangle.Template:
		return true
	}
	return false
}

// returnsNothing looks for the function that begins at an address.
func (l *lines) returnsNothing(address uint64) bool {
	r := l.data.Reader()
	if _, err := r.SeekPC(address); err != nil {
		return false
	}
	for {
		e, err := r.Next()
		if err != nil || e == nil || e.Tag == dwarf.TagCompileUnit {
			return false
		}
		if low, ok := e.Val(dwarf.AttrLowpc).(uint64); ok && e.Tag == dwarf.TagSubprogram && low == address {
			return l.isNothing(e)
		}
	}
}

const maxTypes = 16 // a typedef of a typedef

// isNothing reports whether a function returns no value or a struct. It resolves the type by entries,
// because package dwarf would read all members of a struct, too.
func (l *lines) isNothing(function *dwarf.Entry) bool {
	its := function
	for range maxTypes {
		at, ok := l.attribute(its, dwarf.AttrType, 0).(dwarf.Offset)
		if !ok {
			return true // void
		}
		r, err := l.data.Reader(), error(nil)
		r.Seek(at)
		if its, err = r.Next(); err != nil || its == nil {
			return false
		}
		switch its.Tag {
		case dwarf.TagStructType, dwarf.TagClassType, dwarf.TagUnionType:
			return true
		case dwarf.TagTypedef, dwarf.TagConstType, dwarf.TagVolatileType:
		default:
			return false
		}
	}
	return false
}

package symbols

import (
	"debug/dwarf"
	"debug/elf"

	"github.com/ianlancetaylor/demangle"
)

// ReturnsNothing reports whether a file says of the function with a name (see Offsets) that it returns nothing, or a struct, so that what
// is in the register of results after it means nothing. The name of a template of C++ says so, or DWARF does.
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

// namesNothing reports whether a mangled name has the type that the function returns, as those of templates do, and this is void or is itself
// of a template, which no number is.
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

// isNothing reports whether a function has no type that it returns, or a struct's. It follows the type from entry to entry:
// package dwarf would read all members of a struct, too.
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

package symbols

import (
	"debug/dwarf"
	"debug/elf"
	"path"
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// maxTable limits the bytes read from one file's tables.
const maxTable = 512 << 20

// lines are the source lines and inlined functions of a file, from its DWARF.
type lines struct{ data *dwarf.Data }

// openLines returns nil if the file has no line tables, as most libraries that are shipped.
func openLines(f *elf.File) *lines {
	size := uint64(0)
	for _, s := range f.Sections {
		if strings.HasPrefix(s.Name, ".debug_") || strings.HasPrefix(s.Name, ".zdebug_") {
			size += s.Size
		}
	}
	if size == 0 || size > maxTable {
		return nil
	}
	data, err := f.DWARF()
	if err != nil {
		return nil
	}
	return &lines{data}
}

// expand gives a frame its line, and before it the functions that are inlined there.
func (l *lines) expand(address uint64, f mem.Frame) []mem.Frame {
	if l == nil {
		return []mem.Frame{f}
	}
	unit, err := l.data.Reader().SeekPC(address)
	if err != nil {
		return []mem.Frame{f}
	}
	rows, err := l.data.LineReader(unit)
	if err != nil || rows == nil {
		return []mem.Frame{f}
	}
	row, ok := lineOf(rows, address)
	if !ok {
		return []mem.Frame{f}
	}
	f.File, f.Line = absolute(unit, row.File.Name), row.Line
	stack := []mem.Frame{f}
	for _, call := range l.inlined(unit, address) { // outermost first
		outer := &stack[0]
		inner := mem.Frame{Function: l.name(call), File: outer.File, Line: outer.Line}
		if inner.Function == "" {
			break
		}
		file, _ := call.Val(dwarf.AttrCallFile).(int64)
		line, _ := call.Val(dwarf.AttrCallLine).(int64)
		if files := rows.Files(); 0 <= file && file < int64(len(files)) && files[file] != nil {
			outer.File = absolute(unit, files[file].Name)
		}
		outer.Line = int(line)
		stack = slices.Insert(stack, 0, inner)
	}
	return stack
}

// lineOf finds an address among a unit's lines. They are a sequence for each section of code, as -O2 has one of its own
// for main, and the sequences are in any order; SeekPC of LineReader wants them in the order of their addresses.
func lineOf(rows *dwarf.LineReader, address uint64) (row dwarf.LineEntry, ok bool) {
	for inside := false; ; inside = !row.EndSequence {
		var next dwarf.LineEntry
		if rows.Next(&next) != nil {
			return row, false
		}
		if inside && row.Address <= address && address < next.Address {
			return row, row.File != nil
		}
		row = next
	}
}

// absolute is a file's whole path.
func absolute(unit *dwarf.Entry, file string) string {
	if dir, ok := unit.Val(dwarf.AttrCompDir).(string); ok && !path.IsAbs(file) && dir != "." {
		return path.Join(dir, file)
	}
	return file
}

// inlined returns the calls around an address that were inlined, outermost first.
func (l *lines) inlined(unit *dwarf.Entry, address uint64) (calls []*dwarf.Entry) {
	r := l.data.Reader()
	r.Seek(unit.Offset)
	if _, err := r.Next(); err != nil {
		return nil
	}
	for depth := 0; depth >= 0; {
		e, err := r.Next()
		if err != nil || e == nil {
			return calls
		}
		switch e.Tag {
		case 0:
			depth--
			continue
		case dwarf.TagNamespace:
		case dwarf.TagSubprogram, dwarf.TagInlinedSubroutine, dwarf.TagLexDwarfBlock:
			if !l.covers(e, address) {
				r.SkipChildren()
				continue
			}
			if e.Tag == dwarf.TagInlinedSubroutine {
				calls = append(calls, e)
			}
		default:
			r.SkipChildren()
			continue
		}
		if e.Children {
			depth++
		}
	}
	return calls
}

func (l *lines) covers(e *dwarf.Entry, address uint64) bool {
	ranges, err := l.data.Ranges(e)
	return err == nil && slices.ContainsFunc(ranges, func(r [2]uint64) bool { return r[0] <= address && address < r[1] })
}

const maxOrigins = 4 // a declaration of a declaration

// name returns a function's name. The entry of an inlined call refers to another entry for it.
func (l *lines) name(e *dwarf.Entry) string {
	for _, attr := range []dwarf.Attr{dwarf.AttrLinkageName, dwarf.AttrName} {
		if name, ok := l.attribute(e, attr, 0).(string); ok {
			return demangle.Filter(name)
		}
	}
	return ""
}

// attribute returns an attribute of an entry, or of the one that it refers to for what it does not say itself; nil if there is none.
func (l *lines) attribute(e *dwarf.Entry, which dwarf.Attr, depth int) any {
	if value := e.Val(which); value != nil {
		return value
	}
	for _, attr := range []dwarf.Attr{dwarf.AttrAbstractOrigin, dwarf.AttrSpecification} {
		if at, ok := e.Val(attr).(dwarf.Offset); ok && depth < maxOrigins {
			r := l.data.Reader()
			r.Seek(at)
			if origin, err := r.Next(); err == nil && origin != nil {
				return l.attribute(origin, which, depth+1)
			}
		}
	}
	return nil
}

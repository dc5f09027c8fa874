package symbols

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"errors"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// image names the code of one file. Addresses are those in the file's tables.
type image interface {
	frames(address uint64) []mem.Frame // innermost first; empty if it is not known
	address(offset uint64) uint64      // the address of the byte at an offset in the file

	// function returns the offset in the file and the size of the function at an address.
	function(address uint64) (offset, size uint64, ok bool)
	// isGo reports whether Go's compiler made the code at an address, which then has frame pointers.
	isGo(address uint64) bool
	machine() elf.Machine
}

// openImage reads the tables of an ELF file and closes it.
func openImage(f *os.File, name string) (image, *unwind.Table, error) {
	defer f.Close()
	file, err := elf.NewFile(f)
	if err != nil {
		return nil, nil, err
	}
	callers, _ := unwind.Read(file) // nil if the file has no such tables
	native := &nativeImage{path: name, layout: layoutOf(file), elfMachine: file.Machine}
	native.symbols = functionSymbols(file)
	native.lines = openLines(file)
	if table, err := goTable(file); err == nil {
		return &goImage{*native, table}, callers, nil
	}
	return native, callers, nil
}

// layout maps the bytes of a file to addresses.
type layout []elf.ProgHeader

func layoutOf(f *elf.File) (l layout) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			l = append(l, p.ProgHeader)
		}
	}
	return l
}

func (l layout) address(offset uint64) uint64 {
	for _, p := range l {
		if p.Flags&elf.PF_X != 0 && p.Off <= offset && offset < p.Off+p.Filesz {
			return offset - p.Off + p.Vaddr
		}
	}
	return offset
}

// offset is the reverse of address.
func (l layout) offset(address uint64) (offset uint64, ok bool) {
	for _, p := range l {
		if p.Flags&elf.PF_X != 0 && p.Vaddr <= address && address < p.Vaddr+p.Filesz {
			return address - p.Vaddr + p.Off, true
		}
	}
	return 0, false
}

// nativeImage is a file of C, C++ or Rust.
type nativeImage struct {
	layout
	elfMachine elf.Machine
	path       string
	symbols    []named
	lines      *lines // nil if the file has no lines
}

func (n *nativeImage) frames(address uint64) []mem.Frame {
	s, ok := findNamed(n.symbols, address)
	if !ok {
		return nil
	}
	f := mem.Frame{Function: demangle.Filter(s.name), File: n.path}
	return n.lines.expand(address, f)
}

func (n *nativeImage) machine() elf.Machine { return n.elfMachine }

func (n *nativeImage) isGo(uint64) bool { return false }

func (n *nativeImage) function(address uint64) (offset, size uint64, ok bool) {
	s, ok := findNamed(n.symbols, address)
	if ok {
		offset, ok = n.offset(s.start)
	}
	return offset, s.end - s.start, ok
}

// functionSymbols returns the functions of both symbol tables. Of several at one address any will do.
func functionSymbols(f *elf.File) (all []named) {
	for _, table := range []func() ([]elf.Symbol, error){f.DynamicSymbols, f.Symbols} {
		symbols, err := table()
		if err != nil {
			continue // stripped
		}
		for _, s := range symbols {
			if t := elf.ST_TYPE(s.Info); (t == elf.STT_FUNC || t == elf.STT_GNU_IFUNC) && s.Value != 0 {
				all = append(all, named{s.Value, s.Value + max(1, s.Size), s.Name})
			}
		}
	}
	sortNamed(all)
	return all
}

// goImage is a program in Go, with the C that is linked into it.
type goImage struct {
	nativeImage
	table *gosym.Table
}

func (g *goImage) isGo(address uint64) bool {
	fn := g.table.PCToFunc(address)
	return fn != nil && address < fn.End
}

func (g *goImage) frames(address uint64) []mem.Frame {
	file, line, fn := g.table.PCToLine(address)
	if fn == nil || address >= fn.End {
		return g.nativeImage.frames(address)
	}
	return g.lines.expand(address, mem.Frame{Function: fn.Name, File: file, Line: line})
}

// goTable reads the table that every Go program has, stripped or not.
func goTable(f *elf.File) (*gosym.Table, error) {
	section := f.Section(".gopclntab")
	if section == nil {
		section = f.Section(".data.rel.ro.gopclntab")
	}
	if section == nil || section.Size < 64 || section.Size > maxTable {
		return nil, errors.New("not a program in Go")
	}
	data, err := section.Data()
	if err != nil {
		return nil, err
	}
	start, err := goText(f, data)
	if err != nil {
		return nil, err
	}
	return gosym.NewTable(nil, gosym.NewLineTable(data, start))
}

// goText returns the start of the program's Go code: by its symbol or, if that is stripped, by the
// table's header, the module's data, or the section.
func goText(f *elf.File, table []byte) (uint64, error) {
	if symbols, err := f.Symbols(); err == nil {
		for _, s := range symbols {
			if s.Name == "runtime.text" {
				return s.Value, nil
			}
		}
	}
	const headerText, moduleText = 8 + 2*8, 176 // of runtime.pcHeader until Go 1.25, of runtime.moduledata from 1.26 on
	if at := binary.LittleEndian.Uint64(table[headerText:]); at != 0 {
		return at, nil
	}
	if module := f.Section(".go.module"); module != nil && module.Size >= moduleText+8 && module.Size <= maxTable {
		if data, err := module.Data(); err == nil {
			if at := binary.LittleEndian.Uint64(data[moduleText:]); at != 0 {
				return at, nil
			}
			return relocated(f, module.Addr+moduleText)
		}
	}
	if text := f.Section(".text"); text != nil {
		return text.Addr, nil
	}
	return 0, errors.New("no code")
}

// relocated returns the word that the loader will write at an address of a position-independent
// program.
func relocated(f *elf.File, at uint64) (uint64, error) {
	section := f.Section(".rela.dyn")
	if section == nil || section.Size > maxTable {
		return 0, errors.New("no relocations")
	}
	data, err := section.Data()
	if err != nil {
		return 0, err
	}
	for ; len(data) >= 24; data = data[24:] { // 24 bytes each: offset, info, addend
		if binary.LittleEndian.Uint64(data) == at {
			return binary.LittleEndian.Uint64(data[16:]), nil
		}
	}
	return 0, errors.New("no such relocation")
}

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

// maxPrologue is how many bytes of a function are examined.
const maxPrologue = 32

// setsFramePointer reports whether a function that begins with these bytes sets a frame pointer.
// One that does so later is not recognized.
func setsFramePointer(m elf.Machine, code []byte) bool {
	switch m {
	case elf.EM_X86_64:
		code, saved := bytes.CutPrefix(bytes.TrimPrefix(code, []byte{0xf3, 0x0f, 0x1e, 0xfa}), []byte{0x55})               // endbr64; push rbp
		return saved && (bytes.Contains(code, []byte{0x48, 0x89, 0xe5}) || bytes.Contains(code, []byte{0x48, 0x8b, 0xec})) // mov rbp, rsp: gcc puts others first
	case elf.EM_AARCH64:
		saved := false
		for ; len(code) >= 4; code = code[4:] {
			word := binary.LittleEndian.Uint32(code)
			switch {
			case word&0xfe407fff == 0xa8007bfd: // stp x29, x30, [sp ...]
				saved = true
			case word&0xffc003ff == 0x910003fd: // mov x29, sp, or add x29, sp, #n
				return saved
			}
		}
	}
	return false
}

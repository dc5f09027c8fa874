package symbols

import (
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"errors"
	"os"

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

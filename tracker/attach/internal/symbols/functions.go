package symbols

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// Offsets returns the offset in the file of each function that a library exports. With names it returns
// the functions with these names: see Functions.
func Offsets(path string, names []string) (map[string]uint64, error) {
	functions, err := Functions(path, names)
	if err != nil {
		return nil, err
	}
	at := make(map[string]uint64, len(functions))
	for name, f := range functions {
		at[name] = f.Offset
	}
	return at, nil
}

// Function is a function of a file.
type Function struct {
	Offset uint64 // in the file
	// Unwinds says that the function is of C++ or Rust: an exception or a panic may pass through it. The kernel's
	// return probe replaces the return address, so that the program would end then. See Returns.
	Unwinds bool
}

// Functions returns the functions that a library exports. With names it returns the functions with these
// names, exported or not: those of C++ and Rust as in the source, without parameters, or mangled.
func Functions(path string, names []string) (map[string]Function, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if len(names) > 0 {
		if more, _ := f.Symbols(); more != nil { // a stripped file has none
			symbols, err = append(more, symbols...), nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	its, found := layoutOf(f), make(map[string]Function)
	hasTable := f.Section(".eh_frame") != nil // without one, no exception passes
	wanted := wantedNames(names)
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		offset, ok := its.offset(s.Value)
		name := s.Name
		if ok && len(names) > 0 {
			name, ok = wanted.of(s.Name)
		}
		if ok {
			found[name] = Function{Offset: offset, Unwinds: hasTable && unwinds(s.Name)}
		}
	}
	return found, nil
}

// wantedName is a name to find, and a word that all its mangled forms contain.
type wantedName struct{ name, word string }

type nameList []wantedName

var lastWord = regexp.MustCompile(`[A-Za-z0-9_]+$`)

func wantedNames(names []string) (all nameList) {
	for _, name := range names {
		its := wantedName{name: name}
		if !strings.Contains(name, "operator") { // whose mangled form is another word
			its.word = lastWord.FindString(name)
		}
		all = append(all, its)
	}
	return all
}

// of returns the name that a symbol has. A library may have a hundred thousand symbols: only those with
// the word are demangled.
func (all nameList) of(symbol string) (string, bool) {
	readable := ""
	i := slices.IndexFunc(all, func(w wantedName) bool {
		if symbol == w.name {
			return true
		}
		if strings.HasSuffix(symbol, ".cold") || !strings.Contains(symbol, w.word) { // .cold is not the start of a function
			return false
		}
		if readable == "" {
			readable = demangle.Filter(symbol, demangle.NoParams, demangle.NoTemplateParams)
		}
		return readable == w.name
	})
	if i < 0 {
		return "", false
	}
	return all[i].name, true
}

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

// Note is a place of a static probe (USDT) in a file, as <sys/sdt.h> makes them.
type Note struct {
	Offset    uint64 // in the file
	Semaphore uint64 // in the file: the probe is off while the 16 bits there are 0. 0 means that it has none
	Arguments []NoteArgument
}

// NoteArgument is the location of an argument of a Note: a register, memory at a register plus an offset,
// or a constant.
type NoteArgument struct {
	Bytes    int // 1, 2, 4 or 8
	Signed   bool
	Register string // as the assembler names it, without %; "" of a constant
	Memory   bool
	Offset   int32 // in memory beyond the register, or the constant
}

// Notes returns the places of each static probe, by PROVIDER:NAME. On machines other than amd64 there are
// none. The error says that the file cannot be read, or which argument is not understood.
func Notes(path string) (map[string][]Note, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	section := f.Section(".note.stapsdt")
	if section == nil || f.Machine != elf.EM_X86_64 {
		return nil, nil
	}
	data, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: the notes of its probes: %w", path, err)
	}
	var base uint64
	if s := f.Section(".stapsdt.base"); s != nil {
		base = s.Addr
	}
	all := make(map[string][]Note)
	for len(data) > 0 {
		description, rest, ok := cutNote(f, data)
		if !ok {
			return nil, fmt.Errorf("%s: the notes of its probes end within one", path)
		}
		data = rest
		name, note, err := readNote(f, base, description)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all[name] = append(all[name], note)
	}
	return all, nil
}

// cutNote returns the description of the first note, and the notes behind it.
func cutNote(f *elf.File, data []byte) (description, rest []byte, ok bool) {
	const header = 12 // the sizes of name and description, and the type
	if len(data) < header {
		return nil, nil, false
	}
	padded := func(n uint32) uint64 { return (uint64(n) + 3) &^ 3 }
	size := f.ByteOrder.Uint32(data[4:])
	from := header + padded(f.ByteOrder.Uint32(data))
	if from+uint64(size) > uint64(len(data)) {
		return nil, nil, false
	}
	return data[from:][:size], data[min(from+padded(size), uint64(len(data))):], true
}

// readNote reads a description: three addresses, and three texts. The linker may have moved the code
// since the addresses were written, which the address of the section .stapsdt.base shows.
func readNote(f *elf.File, base uint64, description []byte) (name string, n Note, err error) {
	const addresses = 24
	if len(description) < addresses {
		return "", n, fmt.Errorf("a note of a probe has %d bytes: want %d at least", len(description), addresses)
	}
	at := func(i int) uint64 { return f.ByteOrder.Uint64(description[8*i:]) }
	texts := bytes.SplitN(description[addresses:], []byte{0}, 4)
	if len(texts) < 3 {
		return "", n, fmt.Errorf("a note of a probe has %d texts: want 3", len(texts))
	}
	name = string(texts[0]) + ":" + string(texts[1])
	moved := uint64(0)
	if written := at(1); base != 0 && written != 0 {
		moved = base - written
	}
	if n.Offset = fileOffset(f, at(0)+moved); n.Offset == 0 {
		return name, n, fmt.Errorf("the probe %s is at %#x, outside the file", name, at(0))
	}
	if semaphore := at(2); semaphore != 0 {
		if n.Semaphore = fileOffset(f, semaphore+moved); n.Semaphore == 0 {
			return name, n, fmt.Errorf("the semaphore of the probe %s is at %#x, outside the file", name, semaphore)
		}
	}
	for word := range strings.FieldsSeq(string(texts[2])) {
		a, err := readNoteArgument(word)
		if err != nil {
			return name, n, fmt.Errorf("the probe %s: %w", name, err)
		}
		n.Arguments = append(n.Arguments, a)
	}
	return name, n, nil
}

// fileOffset returns the offset in the file of the contents of an address; 0 if there is none.
func fileOffset(f *elf.File, address uint64) uint64 {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Vaddr <= address && address-p.Vaddr < p.Filesz {
			return address - p.Vaddr + p.Off
		}
	}
	return 0
}

// noteArgument is SIZE@%REGISTER, SIZE@OFFSET(%REGISTER) or SIZE@$CONSTANT. A size below 0 is that of a signed number.
var noteArgument = regexp.MustCompile(`^(-?)([1248])@(?:%(\w+)|(-?\w*)\(%(\w+)\)|\$(-?\w+))$`)

func readNoteArgument(text string) (a NoteArgument, err error) {
	m := noteArgument.FindStringSubmatch(text)
	if m == nil {
		return a, fmt.Errorf("the argument %q: want SIZE@%%REGISTER, SIZE@OFFSET(%%REGISTER) or SIZE@$CONSTANT", text)
	}
	a.Signed, a.Bytes, a.Register = m[1] != "", int(m[2][0]-'0'), m[3]
	if m[5] != "" {
		a.Register, a.Memory = m[5], true
	}
	if number := m[4] + m[6]; number != "" {
		n, err := strconv.ParseInt(number, 0, 32)
		if err != nil {
			return a, fmt.Errorf("the argument %q: %w", text, err)
		}
		a.Offset = int32(n)
	}
	return a, nil
}

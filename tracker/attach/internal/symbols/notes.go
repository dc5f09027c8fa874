package symbols

import (
	"bytes"
	"debug/elf"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

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

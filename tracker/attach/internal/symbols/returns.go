package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/arch/x86/x86asm"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

const (
	maxParts = 32      // of a function
	maxPart  = 1 << 20 // bytes
)

// Returns returns the offsets in the file of all instructions by which a function returns, which begins at an offset. They may be
// of other functions: of those that it jumps to, and of the parts that the compiler moved out of it. The error says why
// not all can be found. It needs the file's unwind table, which says where each function and each part ends.
func Returns(path string, offset uint64) (all []uint64, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	table, err := unwind.Read(f)
	if err != nil {
		return nil, err
	}
	s := returnSearch{file: f, layout: layoutOf(f), table: table, machine: unwind.AMD64, instructions: amd64Instructions}
	if f.Machine == elf.EM_AARCH64 {
		s.machine, s.instructions = unwind.ARM64, arm64Instructions
	}
	s.queue = []uint64{s.layout.address(offset)}
	for i := 0; i < len(s.queue); i++ {
		if i == maxParts {
			return nil, fmt.Errorf("it jumps to more than %d functions", maxParts)
		}
		if err := s.search(s.queue[i]); err != nil {
			return nil, err
		}
	}
	for _, address := range s.found {
		offset, _ := s.layout.offset(address)
		all = append(all, offset)
	}
	return all, nil
}

// returnSearch looks for the instructions that return. It has addresses, as the file has them.
type returnSearch struct {
	file         *elf.File
	layout       layout
	table        *unwind.Table
	machine      *unwind.Machine
	instructions func(code []byte) func(yield func(int, instruction) bool)
	queue        []uint64 // where parts begin
	found        []uint64
}

// search searches the part that has an address.
func (s *returnSearch) search(address uint64) error {
	start, size, ok := s.table.Extent(address)
	if !ok || size > maxPart {
		return fmt.Errorf("the unwind table does not have the function at %#x", address)
	}
	code, err := s.read(start, size)
	if err != nil {
		return err
	}
	for at, it := range s.instructions(code) {
		here := start + uint64(at)
		target := here + uint64(it.distance)
		switch {
		case it.unknown:
			return fmt.Errorf("the instruction at %#x is unknown", here)
		case it.returns:
			s.found = append(s.found, here)
		case it.jumpsAnywhere && !s.table.InFrame(here, s.machine): // in a frame, it is the jump of a switch
			return fmt.Errorf("the jump at %#x may leave the function, to an address that is computed", here)
		case it.jumps && target-start >= size:
			s.add(target)
		}
	}
	return nil
}

// add adds the part that has an address to those to be searched.
func (s *returnSearch) add(address uint64) {
	if start, _, ok := s.table.Extent(address); ok {
		address = start
	}
	first, _, _ := s.table.Extent(s.queue[0])
	if address != first && !slices.Contains(s.queue[1:], address) {
		s.queue = append(s.queue, address)
	}
}

func (s *returnSearch) read(address, size uint64) ([]byte, error) {
	for _, p := range s.file.Progs {
		if p.Type == elf.PT_LOAD && p.Vaddr <= address && address+size <= p.Vaddr+p.Filesz {
			code := make([]byte, size)
			_, err := p.ReadAt(code, int64(address-p.Vaddr))
			return code, err
		}
	}
	return nil, fmt.Errorf("the file has no %d bytes at %#x", size, address)
}

// instruction is where the next instruction may be, if it is not what follows.
type instruction struct {
	returns, jumps, jumpsAnywhere, unknown bool
	distance                               int64 // from the instruction to the target of a jump
}

// amd64Instructions yields the instructions of a function by their offsets, up to the first that is unknown.
func amd64Instructions(code []byte) func(yield func(int, instruction) bool) {
	return func(yield func(int, instruction) bool) {
		for at := 0; at < len(code); {
			it, size := amd64Instruction(code[at:])
			if !yield(at, it) || it.unknown {
				return
			}
			at += size
		}
	}
}

var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

func amd64Instruction(code []byte) (it instruction, size int) {
	if bytes.HasPrefix(code, endbr64) {
		return it, len(endbr64)
	}
	if size = vectorSize(code); size > 0 {
		return it, size
	}
	in, err := x86asm.Decode(code, 64)
	if err != nil || in.Len == 0 {
		return instruction{unknown: true}, 0
	}
	switch op := in.Op.String(); {
	case in.Op == x86asm.RET:
		it.returns = true
	case op[0] == 'J' || in.Op == x86asm.LOOP || in.Op == x86asm.LOOPE || in.Op == x86asm.LOOPNE:
		if target, ok := in.Args[0].(x86asm.Rel); ok {
			it.jumps, it.distance = true, int64(in.Len)+int64(target)
		} else {
			it.jumpsAnywhere = true
		}
	}
	return it, in.Len
}

// vectorSize returns the size of an instruction with a VEX or EVEX prefix (AVX, AVX-512), which x86asm does not decode; 0
// of any other. None of them jumps. See Intel's manual, volume 2, sections 2.3 and 2.7, and its opcode map A.3.
func vectorSize(code []byte) int {
	const vex2, vex3, evex = 0xc5, 0xc4, 0x62
	if len(code) < 6 {
		return 0
	}
	var opcode, opcodes int // the position of the opcode, and its map
	switch code[0] {
	case vex2:
		opcode, opcodes = 2, 1
	case vex3:
		opcode, opcodes = 3, int(code[1]&0x1f)
	case evex:
		opcode, opcodes = 4, int(code[1]&0x7)
	default:
		return 0
	}
	op, at := code[opcode], opcode+1
	if opcodes == 1 && op == 0x77 { // vzeroupper has no operands
		return at
	}
	mode, rm := code[at]>>6, code[at]&7
	at++
	if mode != 3 && rm == 4 { // a SIB byte
		if mode == 0 && at < len(code) && code[at]&7 == 5 {
			at += 4
		}
		at++
	}
	switch {
	case mode == 1:
		at++
	case mode == 2 || mode == 0 && rm == 5:
		at += 4
	}
	hasImmediate := opcodes == 3 || opcodes == 1 && (op >= 0x70 && op <= 0x73 || op == 0xc2 || op >= 0xc4 && op <= 0xc6)
	if hasImmediate {
		at++
	}
	return min(at, len(code))
}

// arm64Instructions yields the instructions of a function by their offsets. See the Arm Architecture Reference Manual,
// section C4.1.
func arm64Instructions(code []byte) func(yield func(int, instruction) bool) {
	return func(yield func(int, instruction) bool) {
		for at := 0; at+4 <= len(code); at += 4 {
			if !yield(at, arm64Instruction(binary.LittleEndian.Uint32(code[at:]))) {
				return
			}
		}
	}
}

func arm64Instruction(w uint32) (it instruction) {
	const (
		anyRegister = 0xfffffc1f
		ret, br     = 0xd65f0000, 0xd61f0000
		retaa       = 0xd65f0bff
		retab       = 0xd65f0fff
	)
	// words returns a signed number of words in the instruction, in bytes.
	words := func(from, bits int) int64 { return int64(int32(w<<(32-from-bits))>>(32-bits)) * 4 }
	switch {
	case w&anyRegister == ret || w == retaa || w == retab:
		it.returns = true
	case w&anyRegister == br || w>>24 == 0xd7 && w>>21&7 == 0, w&0xfffff800 == 0xd61f0800: // BRAA and its kind authenticate the target
		it.jumpsAnywhere = true
	case w>>26 == 0b000101: // B
		it.jumps, it.distance = true, words(0, 26)
	case w>>24 == 0x54, w>>25&0x3f == 0b011010: // B.cond, CBZ, CBNZ
		it.jumps, it.distance = true, words(5, 19)
	case w>>25&0x3f == 0b011011: // TBZ, TBNZ
		it.jumps, it.distance = true, words(5, 14)
	}
	return it
}

// unwinds reports whether an exception or a panic may pass through the function of a symbol: whether it is mangled as
// those of C++ (_Z) and Rust (_R) are.
func unwinds(symbol string) bool {
	return strings.HasPrefix(symbol, "_Z") || strings.HasPrefix(symbol, "_R")
}

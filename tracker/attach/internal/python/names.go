package python

import (
	"encoding/binary"
	"unicode/utf16"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// function is what a code object says about itself.
type function struct {
	content
	lines []byte
	cut   bool // there are more lines
}

// content tells a function from others, as far as stacks show it.
type content struct {
	file, name string
	first      int
	lines      string
}

// The most that is read of a string or a table of lines: what is longer is damaged, or not worth it.
const (
	maxText  = 4 << 10
	maxLines = 1 << 20
	maxKnown = 1 << 16
)

// Number puts the number of each function in the place of the address of its code object, in words that give two for each frame (see
// decode), innermost first. The memory may belong to another code object later, which is another function.
func (p *Process) Number(words []uint64) {
	for i := 0; i+1 < len(words); i += 2 {
		f := decode(words[i], words[i+1])
		words[i] = uint64(f.owner)
		if !p.isCs(f) {
			words[i] |= p.number(f) << 4
		}
	}
}

// Runs names numbered frames. It returns one part for each run of the interpreter's loop, since C code that calls Python starts another
// run. A run that is just leaving its function has no frame.
func (p *Process) Runs(words []uint64) (runs [][]mem.Frame) {
	var run []mem.Frame
	end := func() { runs, run = append(runs, run), nil }
	for i := 0; i+1 < len(words); i += 2 {
		f := decode(words[i], words[i+1])
		if p.isCs(f) {
			end()
			continue
		}
		run = append(run, p.frame(words[i]>>4, f))
		if p.Version < 0x030b || p.Version == 0x030b && f.owner != 0 {
			end()
		}
	}
	if len(run) > 0 {
		end()
	}
	return runs
}

// OwnedByC is the owner of a frame that runs nothing: it stands between the frames of C's caller and Python's (enum _frameowner). 3.14
// has two such owners, this and the next.
const OwnedByC = 3

// isCs reports whether a frame is such a one.
func (p *Process) isCs(f frame) bool { return p.Version >= 0x030c && f.owner >= OwnedByC }

// frame names a frame.
func (p *Process) frame(number uint64, f frame) mem.Frame {
	its := p.functions[number]
	if its == nil {
		return mem.Frame{Function: "(a Python function that could not be read)"}
	}
	return mem.Frame{Function: its.name, File: its.file, Line: p.line(its, f.at)}
}

// number returns the number of the function of a frame, which it reads now if there was no copy; 0 if it cannot be read.
func (p *Process) number(f frame) uint64 {
	if its := p.known[f.code]; its != 0 && !f.isNew {
		return its
	}
	delete(p.known, f.code)
	its, ok := p.function(f.code)
	if !ok || its.first != int(f.first) || !p.alive(f.code) {
		return 0
	}
	return p.keep(f.code, its)
}

// keep gives a function its number, which no other of the process ever has.
func (p *Process) keep(code uint64, f *function) uint64 {
	if len(p.functions) >= maxKnown || len(p.known) >= maxKnown || p.functions == nil {
		p.known, p.numbers, p.functions = make(map[uint64]uint64), make(map[content]uint64), make(map[uint64]*function)
	}
	f.content.lines = string(f.lines)
	number, ok := p.numbers[f.content]
	if !ok {
		p.last++
		number = p.last
		p.numbers[f.content], p.functions[number] = number, f
	}
	p.known[code] = number
	return number
}

// function reads a code object. Its lines are nil if they cannot be read.
func (v view) function(code uint64) (f *function, ok bool) {
	its := v.Names()
	f = new(function)
	if f.file, ok = v.text(v.word(code + its.File)); !ok {
		return nil, false
	}
	if f.name, ok = v.text(v.word(code + its.Name)); !ok {
		return nil, false
	}
	f.first = int(v.first(code))
	f.lines, _ = v.bytes(v.word(code + its.Lines))
	return f, true
}

// alive reports whether an object is not freed yet: its count of references is not 0, and not the address of other free memory, which
// an allocator keeps there. Objects that live for ever have a count of 32 bits, and flags in the highest 16. Without a GIL it is not known.
func (v view) alive(object uint64) bool {
	count := v.word(object)
	return v.freeThreaded || count != 0 && count>>32&0xffff == 0
}

func (v view) first(code uint64) uint32 {
	b, err := v.read(code+v.FirstLine, 4)
	if err != nil {
		return 0
	}
	return binary.LittleEndian.Uint32(b)
}

// text reads a string. Its state tells how wide its characters are (PyASCIIObject in unicodeobject.h).
func (v view) text(object uint64) (string, bool) {
	if object == 0 {
		return "", false
	}
	length := v.word(object + v.names.length)
	kind, compact, ascii := stateOf(uint32(v.word(object + v.names.state)))
	if !compact || length > maxText || kind != 1 && kind != 2 && kind != 4 {
		return "", false
	}
	at := object + v.names.compact
	if ascii {
		at = object + v.names.ascii
	}
	b, err := v.read(at, int(length)*int(kind))
	if err != nil {
		return "", false
	}
	if ascii {
		return string(b), true
	}
	return wide(b, int(kind)), true
}

// stateOf splits a string's state. Its first field says whether the string is interned, in a value below 4: it has 2 bits, or since
// 3.14 16 bits, or without a GIL 8 bits. What follows is never 0.
func stateOf(state uint32) (kind uint32, compact, ascii bool) {
	switch {
	case state&0xfffc == 0:
		state >>= 16
	case state&0xfc == 0:
		state >>= 8
	default:
		state >>= 2
	}
	return state & 7, state>>3&1 == 1, state>>4&1 == 1
}

// wide decodes characters of 1, 2 or 4 bytes.
func wide(b []byte, kind int) string {
	runes := make([]rune, 0, len(b)/kind)
	for ; len(b) >= kind; b = b[kind:] {
		switch kind {
		case 1:
			runes = append(runes, rune(b[0]))
		case 2:
			r := rune(binary.LittleEndian.Uint16(b))
			if utf16.IsSurrogate(r) {
				r = '\uFFFD'
			}
			runes = append(runes, r)
		default:
			runes = append(runes, rune(binary.LittleEndian.Uint32(b)))
		}
	}
	return string(runes)
}

// bytes reads a bytes object.
func (v view) bytes(object uint64) ([]byte, bool) {
	n := v.word(object + v.names.byteSize)
	if object == 0 || n > maxLines {
		return nil, false
	}
	b, err := v.read(object+v.names.bytes, int(n))
	return b, err == nil
}

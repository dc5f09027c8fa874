package python

import (
	"encoding/binary"
	"unicode/utf16"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// function is what a code object says about itself.
type function struct {
	pointers   [2]uint64 // to the strings with its file and name: another function at this address has others
	file, name string
	first      int
	lines      []byte
}

// The most that is read of a string or a table of lines: what is longer is damaged, or not worth it.
const (
	maxText  = 4 << 10
	maxLines = 1 << 20
	maxKnown = 1 << 16
)

// Runs names Python frames, innermost first; two words give one frame (see decode). It returns one part for each run of the
// interpreter's loop, since C code that calls Python starts another run. A run that is just leaving its function has no frame.
func (p *Process) Runs(words []uint64) (runs [][]mem.Frame) {
	var run []mem.Frame
	end := func() { runs, run = append(runs, run), nil }
	for i := 0; i+1 < len(words); i += 2 {
		f := decode(words[i], words[i+1])
		if p.Version >= 0x030c && f.owner >= ownedByC {
			end()
			continue
		}
		run = append(run, p.frame(f))
		if p.Version < 0x030b || p.Version == 0x030b && f.owner != 0 {
			end()
		}
	}
	if len(run) > 0 {
		end()
	}
	return runs
}

// ownedByC is the owner of a frame that runs nothing: it stands between the frames of C's caller and Python's (enum _frameowner). 3.14
// has two such owners, this and the next.
const ownedByC = 3

// frame names a frame.
func (p *Process) frame(f frame) mem.Frame {
	its := p.function(f)
	if its == nil {
		return mem.Frame{Function: "(a Python function that could not be read)"}
	}
	return mem.Frame{Function: its.name, File: its.file, Line: p.line(its, f.at)}
}

// function returns the function of a code object, which it reads once; nil if it cannot be read.
// The memory may belong to another code object by now. Its strings then have other addresses, or its
// line is another, and it is read again.
func (p *Process) function(f frame) *function {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := p.names.name
	if p.names.qualified != 0 {
		name = p.names.qualified
	}
	pointers := [2]uint64{p.word(f.code + p.names.file), p.word(f.code + name)}
	if its := p.known[f.code]; its != nil && (its.pointers == pointers || pointers == [2]uint64{}) && its.first == int(f.first) {
		return its
	}
	its := &function{pointers: pointers, first: int(f.first)}
	var ok [2]bool
	its.file, ok[0] = p.text(pointers[0])
	its.name, ok[1] = p.text(pointers[1])
	if ok != [2]bool{true, true} || p.first(f.code) != f.first {
		return nil
	}
	its.lines = p.bytes(p.word(f.code + p.names.lines))
	if !p.alive(f.code) {
		return nil
	}
	if len(p.known) == maxKnown {
		clear(p.known)
	}
	p.known[f.code] = its
	return its
}

// alive reports whether an object is not freed yet: its count of references is not 0, and not the address of other free memory, which
// an allocator keeps there. Objects that live for ever have a count of 32 bits, and flags in the highest 16. Without a GIL it is not known.
func (p *Process) alive(object uint64) bool {
	count := p.word(object)
	return p.freeThreaded || count != 0 && count>>32&0xffff == 0
}

func (p *Process) first(code uint64) uint32 {
	b, err := p.read(code+p.FirstLine, 4)
	if err != nil {
		return 0
	}
	return binary.LittleEndian.Uint32(b)
}

// text reads a string. Its state tells how wide its characters are (PyASCIIObject in unicodeobject.h).
func (p *Process) text(object uint64) (string, bool) {
	if object == 0 {
		return "", false
	}
	length := p.word(object + p.names.length)
	kind, compact, ascii := stateOf(uint32(p.word(object + p.names.state)))
	if !compact || length > maxText || kind != 1 && kind != 2 && kind != 4 {
		return "", false
	}
	at := object + p.names.compact
	if ascii {
		at = object + p.names.ascii
	}
	b, err := p.read(at, int(length)*int(kind))
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

// bytes reads a bytes object; nil if it cannot be read.
func (p *Process) bytes(object uint64) []byte {
	n := p.word(object + p.names.byteSize)
	if object == 0 || n > maxLines {
		return nil
	}
	b, err := p.read(object+p.names.bytes, int(n))
	if err != nil {
		return nil
	}
	return b
}

package python

import (
	"cmp"
	"encoding/binary"
	"unicode/utf16"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// function is what was read of a code object.
type function struct {
	content
	id        uint64 // unique in the process
	lines     []byte
	truncated bool // lines is only the beginning
}

// content identifies a function, as far as stacks show it.
type content struct {
	file, name string
	first      int
	lines      string
}

// Maximum sizes of a string and a line table, and half the number of functions that are kept.
const (
	maxText  = 4 << 10
	maxLines = 1 << 20
	maxKnown = 1 << 15
)

// functions are those that stacks of a process have. The process copies a code object again only if it has
// forgotten that it did. So those that were not used for long are dropped, and no others: the process
// remembers fewer.
type functions struct{ recent, older generation }

// generation is the functions that were used in a period.
type generation struct {
	byCode    map[uint64]*function // the address of the code object
	byContent map[content]*function
	byID      map[uint64]*function
}

func newGeneration() generation {
	return generation{make(map[uint64]*function), make(map[content]*function), make(map[uint64]*function)}
}

// Number replaces the address of each code object by the ID of its function. words has two words for each
// frame (see decode), innermost first. The address may belong to another code object later.
func (p *Process) Number(words []uint64) {
	for i := 0; i+1 < len(words); i += 2 {
		f := decode(words[i], words[i+1])
		words[i] = uint64(f.owner)
		if !p.isShim(f) {
			words[i] |= p.number(f) << 4
		}
	}
}

// Runs names frames after Number. It returns a part for each run of the interpreter's loop: C code that
// calls Python starts another run. A run that is just leaving its function has no frame.
func (p *Process) Runs(words []uint64) (runs [][]mem.Frame) {
	var run []mem.Frame
	end := func() { runs, run = append(runs, run), nil }
	for i := 0; i+1 < len(words); i += 2 {
		f := decode(words[i], words[i+1])
		if p.isShim(f) {
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

// OwnedByInterpreter is the owner of a shim frame, which runs no code: it separates the frames of a call
// from C (enum _frameowner). 3.14 has two such owners, this and the next.
const OwnedByInterpreter = 3

// isShim reports whether a frame is a shim frame.
func (p *Process) isShim(f frame) bool { return p.Version >= 0x030c && f.owner >= OwnedByInterpreter }

// frame names a frame.
func (p *Process) frame(number uint64, f frame) mem.Frame {
	its := p.functions.withID(number)
	if its == nil {
		return mem.Frame{Function: "(a Python function that could not be read)"}
	}
	return mem.Frame{Function: its.name, File: its.file, Line: p.line(its, f.at)}
}

// number returns the ID of a frame's function; 0 if it is unknown. What is at the address of its code object
// now may be another's.
func (p *Process) number(f frame) uint64 {
	if f.notCopied {
		if its, ok := p.functionNow(f.code, f.digest); ok {
			return p.unique(its).id
		}
		return 0
	}
	if its := p.functions.at(f.code); its != nil {
		return its.id
	}
	return 0
}

// keep makes a function known by the address of its code object, and returns its ID.
func (p *Process) keep(code uint64, f *function) uint64 {
	f = p.unique(f)
	p.functions.add(code, f)
	return f.id
}

// unique returns the function with the same content that has an ID. If there is none, f gets one.
func (p *Process) unique(f *function) *function {
	f.content.lines = string(f.lines)
	if its := p.functions.with(f.content); its != nil {
		return its
	}
	p.last++
	f.id = p.last
	p.functions.use(f)
	return f
}

// at returns the function of the code object at an address; nil if it is unknown.
func (s *functions) at(code uint64) *function {
	f := s.recent.byCode[code]
	if f == nil {
		if f = s.older.byCode[code]; f != nil {
			s.add(code, f)
		}
	}
	return f
}

// with returns the function with a content; nil if it is unknown.
func (s *functions) with(c content) *function {
	f := s.recent.byContent[c]
	if f == nil {
		if f = s.older.byContent[c]; f != nil {
			s.use(f)
		}
	}
	return f
}

// withID returns a function that was used for the latest stack.
func (s *functions) withID(id uint64) *function { return cmp.Or(s.recent.byID[id], s.older.byID[id]) }

// add makes a function known by an address.
func (s *functions) add(code uint64, f *function) {
	s.use(f)
	s.recent.byCode[code] = f
}

// forget makes an address unknown.
func (s *functions) forget(code uint64) {
	delete(s.recent.byCode, code)
	delete(s.older.byCode, code)
}

// use keeps a function in this period and the next.
func (s *functions) use(f *function) {
	if s.recent.byCode == nil || len(s.recent.byCode) >= maxKnown || len(s.recent.byID) >= maxKnown {
		s.recent, s.older = newGeneration(), s.recent
	}
	s.recent.byContent[f.content], s.recent.byID[f.id] = f, f
}

// function reads a code object. lines is nil if they cannot be read.
func (v memoryView) function(code uint64) (f *function, ok bool) {
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

// functionNow reads the code object at an address, if it is still the one that had a digest at the call.
func (p *Process) functionNow(code uint64, digest uint32) (*function, bool) {
	if now, ok := p.digest(code); !ok || now != digest {
		return nil, false
	}
	f, ok := p.function(code)
	after, same := p.digest(code)
	return f, ok && same && after == digest && p.isLive(code)
}

// digest returns the lowest 32 bits of what identifies the code object at an address, as identify computes it in the
// kernel: of its head, which has a unique version number since 3.12, and before of the texts of both names.
func (v memoryView) digest(code uint64) (digest uint32, ok bool) {
	its := v.Names()
	head, err := v.read(code+its.Lines+8-headSize, headSize)
	if err != nil {
		return 0, false
	}
	sum, power := uint64(1), uint64(mixer)
	for i := 0; i < headSize; i += 8 {
		sum += binary.LittleEndian.Uint64(head[i:]) * power
		power *= mixer
	}
	sum ^= sum >> 29
	if v.Version >= 0x030c {
		return uint32(sum), true
	}
	file, isFile := v.paddedText(v.word(code+its.File), maxFileDigested)
	name, isName := v.paddedText(v.word(code+its.Name), maxNameDigested)
	texts := mix(0, uint64(len(file)))
	for text := append(file, name...); len(text) > 0; text = text[8:] {
		texts = mix(texts, binary.LittleEndian.Uint64(text))
	}
	return uint32(sum ^ texts ^ texts>>29), isFile && isName
}

// As in code.bpf.c and python.h: the size of a head, the most bytes of a text, and a factor.
const (
	headSize        = 88
	maxFileDigested = 192
	maxNameDigested = 96
	mixer           = 0x9e3779b97f4a7c15
)

func mix(digest, word uint64) uint64 { return (digest ^ word) * mixer }

// paddedText returns the text of a string with the terminating 0 and what follows in its last word of 8 bytes.
func (v memoryView) paddedText(object uint64, most int) ([]byte, bool) {
	kind, _, ascii := stateOf(uint32(v.word(object + v.names.state)))
	at, size := object+v.names.compact, v.word(object+v.names.length)+1
	if size > uint64(most) {
		return nil, false
	}
	if ascii {
		at, kind = object+v.names.ascii, 1
	}
	size = (size*uint64(kind) + 7) &^ 7
	if size > uint64(most) {
		return nil, false
	}
	text, err := v.read(at, int(size))
	return text, err == nil
}

// isLive reports whether an object is not freed: its reference count is not 0, nor the address of another
// free block, which an allocator stores there. Immortal objects have a count of 32 bits, and flags in the
// highest 16. In free-threaded builds it is unknown, and true.
func (v memoryView) isLive(object uint64) bool {
	count := v.word(object)
	return v.freeThreaded || count != 0 && count>>32&0xffff == 0
}

func (v memoryView) first(code uint64) uint32 {
	b, err := v.read(code+v.FirstLine, 4)
	if err != nil {
		return 0
	}
	return binary.LittleEndian.Uint32(b)
}

// text reads a string. Its state has the width of its characters (PyASCIIObject in unicodeobject.h).
func (v memoryView) text(object uint64) (string, bool) {
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
	end := ""
	if c, ok := v.from.(copied); ok && err != nil {
		b, end = c.rest(at), cutOff
	}
	switch {
	case len(b) == 0 && length > 0:
		return "", false
	case ascii:
		return string(b) + end, true
	}
	return wide(b, int(kind)) + end, true
}

// cutOff stands for the rest of a text that is too long to be copied.
const cutOff = "…"

// stateOf splits a string's state. Its first field, interned, has a value below 4 in 2 bits, or since 3.14
// in 16 bits, or in free-threaded builds in 8 bits. The next field is never 0.
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
func (v memoryView) bytes(object uint64) ([]byte, bool) {
	n := v.word(object + v.names.byteSize)
	if object == 0 || n > maxLines {
		return nil, false
	}
	b, err := v.read(object+v.names.bytes, int(n))
	return b, err == nil
}

// line returns the source line of an instruction: 0 if it is unknown, and the function's first line if the
// table has no line for it.
func (p *Process) line(f *function, at uint32) int {
	var line int
	switch {
	case p.freeThreaded && p.Version > 0x030d: // threads run copies of the instructions
		return 0
	case p.Version >= 0x030b:
		line = locationLine(f.lines, f.first, int(at)-int(p.names.instructions))
	case p.Version == 0x030a:
		line = linetableLine(f.lines, f.first, 2*int(at))
	default:
		line = lnotabLine(f.lines, f.first, int(at))
	}
	if line <= 0 && f.truncated {
		return 0
	}
	if line <= 0 {
		return f.first
	}
	return line
}

// lnotabLine reads the table of Python up to 3.9 (Objects/lnotab_notes.txt): pairs of increments of the
// address and of the line.
func lnotabLine(table []byte, line, at int) int {
	address := 0
	for i := 0; i+1 < len(table); i += 2 {
		if address += int(table[i]); address > at {
			break
		}
		line += int(int8(table[i+1]))
	}
	return line
}

// linetableLine reads the table of Python 3.10 (PEP 626): pairs of the length of a range and the increment
// of the line; -128 means no line.
func linetableLine(table []byte, line, at int) int {
	end := 0
	for i := 0; i+1 < len(table); i += 2 {
		end += int(table[i])
		step := int(int8(table[i+1]))
		if step != -128 {
			line += step
		}
		if at < end {
			if step == -128 {
				return 0
			}
			return line
		}
	}
	return 0
}

// locationLine reads the table of Python since 3.11 (PEP 657, Objects/locations.md): entries of a kind, a length in
// instructions of two bytes, and what the kind has.
func locationLine(table []byte, line, at int) int {
	end := 0
	for i := 0; i < len(table); {
		first := table[i]
		i++
		end += 2 * (int(first&7) + 1)
		none := false
		switch kind := first >> 3 & 15; {
		case kind == 15:
			none = true
		case kind == 14: // line increment, end line, two columns
			line += signed(table, &i)
			for range 3 {
				unsigned(table, &i)
			}
		case kind == 13:
			line += signed(table, &i)
		case kind >= 10:
			line += int(kind) - 10
			i += 2
		default:
			i++
		}
		if at < end {
			if none {
				return 0
			}
			return line
		}
	}
	return 0
}

// unsigned reads a varint of six-bit groups.
func unsigned(table []byte, i *int) (v int) {
	for shift := 0; *i < len(table) && shift < 36; shift += 6 {
		b := table[*i]
		*i++
		v |= int(b&0x3f) << shift
		if b&0x40 == 0 {
			break
		}
	}
	return v
}

// signed reads a varint whose sign is its lowest bit.
func signed(table []byte, i *int) int {
	v := unsigned(table, i)
	if v&1 != 0 {
		return -(v >> 1)
	}
	return v >> 1
}

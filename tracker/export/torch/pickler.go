package torch

import (
	"bufio"
	"encoding/binary"
	"io"
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// The opcodes of Python's pickletools that PyTorch's page reads. It knows no
// others, and no protocol above 4.
const (
	opProto           = 0x80
	opStop            = '.'
	opMark            = '('
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opLong1           = 0x8a
	opShortBinUnicode = 0x8c
	opBinUnicode      = 'X'
	opEmptyList       = ']'
	opAppends         = 'e'
	opTuple2          = 0x86
	opEmptyDict       = '}'
	opSetItems        = 'u'
	opMemoize         = 0x94
	opBinGet          = 'h'
	opLongBinGet      = 'j'
)

// batch is the largest number of elements for one APPENDS, the same as Python's: the page passes
// them as arguments of one call.
const batch = 1000

// pickler writes a pickle of protocol 4. Its first error stays in w.
type pickler struct {
	w     *bufio.Writer
	memos uint32
	names map[string]memo

	scratch [9]byte
}

// memo is a place in the reader's memory, where an object can be got again.
type memo uint32

func newPickler(w io.Writer) *pickler {
	p := &pickler{w: bufio.NewWriterSize(w, 1<<16), names: make(map[string]memo)}
	p.number(opProto, 4, 1)
	return p
}

func (p *pickler) op(code byte) { p.w.WriteByte(code) }

// number writes an opcode and the low bytes of its argument.
func (p *pickler) number(code byte, v uint64, bytes int) {
	p.scratch[0] = code
	binary.LittleEndian.PutUint64(p.scratch[1:], v)
	p.w.Write(p.scratch[:1+bytes])
}

// close ends the pickle and returns the first error of all writes.
func (p *pickler) close() error {
	p.op(opStop)
	return p.w.Flush()
}

// memoize remembers the object that was just written.
func (p *pickler) memoize() memo {
	p.op(opMemoize)
	p.memos++
	return memo(p.memos - 1)
}

// get writes a remembered object again.
func (p *pickler) get(m memo) {
	if m < 256 {
		p.number(opBinGet, uint64(m), 1)
	} else {
		p.number(opLongBinGet, uint64(m), 4)
	}
}

func (p *pickler) bool(b bool) {
	if b {
		p.op(opNewTrue)
	} else {
		p.op(opNewFalse)
	}
}

func (p *pickler) int(v int64) {
	switch {
	case 0 <= v && v < 1<<8:
		p.number(opBinInt1, uint64(v), 1)
	case 0 <= v && v < 1<<16:
		p.number(opBinInt2, uint64(v), 2)
	case v == int64(int32(v)):
		p.number(opBinInt, uint64(v), 4)
	default: // two's complement, in the fewest bytes that keep the sign
		n := bits.Len64(uint64(v^v>>63))/8 + 1
		p.number(opLong1, uint64(n), 1)
		binary.LittleEndian.PutUint64(p.scratch[:], uint64(v))
		p.w.Write(p.scratch[:n])
	}
}

// text writes a string that is not expected again.
func (p *pickler) text(s string) {
	s = text.UTF8(s) // which Python decodes, and refuses if it is not
	if len(s) < 256 {
		p.number(opShortBinUnicode, uint64(len(s)), 1)
	} else {
		p.number(opBinUnicode, uint64(len(s)), 4)
	}
	p.w.WriteString(s)
}

// name writes a string the first time, and later a reference to it.
func (p *pickler) name(s string) {
	m, ok := p.names[s]
	if ok {
		p.get(m)
		return
	}
	p.text(s)
	p.names[s] = p.memoize()
}

func (p *pickler) beginDict() {
	p.op(opEmptyDict)
	p.op(opMark)
}

func (p *pickler) endDict() { p.op(opSetItems) }

func (p *pickler) nameItem(key, value string) {
	p.name(key)
	p.name(value)
}

func (p *pickler) intItem(key string, value int64) {
	p.name(key)
	p.int(value)
}

// list writes a list in batches. The caller writes each element after next.
type list struct {
	p *pickler
	n int
}

func (p *pickler) beginList() *list {
	p.op(opEmptyList)
	return &list{p: p}
}

func (l *list) next() {
	if l.n%batch == 0 {
		l.end()
		l.p.op(opMark)
	}
	l.n++
}

func (l *list) end() {
	if l.n > 0 {
		l.p.op(opAppends)
	}
}

package main

import (
	"bufio"
	"encoding/binary"
	"io"
)

// pickler writes a pickle as Python's does: what can be shared is stored where it is first written, and a list or dict is
// filled by up to a thousand elements at a time.
type pickler struct {
	out    *bufio.Writer
	stored uint32
	texts  map[string]uint32
	lines  map[frame]uint32
	open   []int // elements since the latest mark, of each open list or dict
}

func newPickler(w io.Writer) *pickler {
	p := &pickler{out: bufio.NewWriterSize(w, 1<<20), texts: make(map[string]uint32), lines: make(map[frame]uint32)}
	p.out.WriteString("\x80\x04")
	return p
}

// flush ends the pickle. The error is that of any write.
func (p *pickler) flush() error {
	p.out.WriteByte('.')
	return p.out.Flush()
}

func (p *pickler) store() uint32 {
	p.out.WriteByte(0x94)
	p.stored++
	return p.stored - 1
}

func (p *pickler) get(at uint32) {
	if at < 256 {
		p.out.Write([]byte{'h', byte(at)})
		return
	}
	p.out.Write(binary.LittleEndian.AppendUint32([]byte{'j'}, at))
}

func (p *pickler) beginDict() { p.begin('}') }
func (p *pickler) beginList() { p.begin(']') }

func (p *pickler) emptyList() {
	p.out.WriteByte(']')
	p.store()
}

func (p *pickler) begin(empty byte) {
	p.out.WriteByte(empty)
	p.store()
	p.out.WriteByte('(')
	p.open = append(p.open, 0)
}

func (p *pickler) endDict() { p.end('u') }
func (p *pickler) endList() { p.end('e') }

func (p *pickler) end(fill byte) {
	p.out.WriteByte(fill)
	p.open = p.open[:len(p.open)-1]
}

// element begins an element of a long list.
func (p *pickler) element() {
	const batch = 1000
	n := &p.open[len(p.open)-1]
	if *n++; *n > batch {
		p.out.WriteString("e(")
		*n = 1
	}
}

func (p *pickler) text(s string) {
	if at, ok := p.texts[s]; ok {
		p.get(at)
		return
	}
	if len(s) < 256 {
		p.out.Write([]byte{0x8c, byte(len(s))})
	} else {
		p.out.Write(binary.LittleEndian.AppendUint32([]byte{'X'}, uint32(len(s))))
	}
	p.out.WriteString(s)
	p.texts[s] = p.store()
}

// item writes a key and its value: a string, an int, an int64 or a bool.
func (p *pickler) item(key string, value any) {
	p.text(key)
	switch v := value.(type) {
	case string:
		p.text(v)
	case int:
		p.number(int64(v))
	case int64:
		p.number(v)
	case bool:
		p.out.WriteByte(map[bool]byte{true: 0x88, false: 0x89}[v])
	}
}

func (p *pickler) number(n int64) {
	switch {
	case 0 <= n && n < 1<<8:
		p.out.Write([]byte{'K', byte(n)})
	case 0 <= n && n < 1<<16:
		p.out.Write(binary.LittleEndian.AppendUint16([]byte{'M'}, uint16(n)))
	case -1<<31 <= n && n < 1<<31:
		p.out.Write(binary.LittleEndian.AppendUint32([]byte{'J'}, uint32(n)))
	default:
		p.out.Write(binary.LittleEndian.AppendUint64([]byte{0x8a, 8}, uint64(n)))
	}
}

func (p *pickler) frame(f frame) {
	if at, ok := p.lines[f]; ok {
		p.get(at)
		return
	}
	p.out.WriteByte('}')
	p.lines[f] = p.store()
	p.out.WriteByte('(')
	p.item("name", f.function)
	p.item("filename", f.file)
	p.item("line", f.line)
	p.out.WriteByte('u')
}

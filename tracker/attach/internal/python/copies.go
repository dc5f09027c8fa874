package python

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
)

// What runs a code object may free it at once, and end. So whoever sees one run, when it is new there, copies what it has of names: the
// parts of the process's memory that are read to name it. A part that is too long is cut, and then read from the process, if that can
// still be.

// Part is a part of a copy.
type Part int

// The parts of a copy, in its order. Their sizes are the most that is copied.
const (
	Object  Part = iota // the code object
	File                // a string
	Name                // a string
	Runtime             // what the interpreter tells of itself; 0 bytes in the kernel's copies
	Lines               // a bytes object with the table of lines
	parts
)

const mostLines = 4 << 10

// MostOf is the most bytes that a copy has of each part.
var MostOf = [parts]int{Object: 192, File: 512, Name: 256, Runtime: 8 * 96, Lines: mostLines}

// The places of what a copy has, in bytes. It begins like an event.
const (
	CopyCode    = 24                        // the address of the code object
	CopyVersion = 32                        // of Python; 0 if that is known
	CopyInside  = 40                        // an address in the interpreter's code; 0 if its file is known
	CopyParts   = 48                        // the address of each part, and its size
	CopyText    = CopyParts + 16*int(parts) // the parts, each at its place
)

// At is the place of a part in a copy.
func (p Part) At() int {
	at := CopyText
	for before := range p {
		at += MostOf[before]
	}
	return at
}

// LargestCopy is at least the size of a copy.
const LargestCopy = CopyText + 2<<10 + mostLines

// CopySize is the size of a copy with so many bytes of the table of lines.
func CopySize(lines int) int { return Lines.At() + lines }

// copied is a copy. It is read like a process's memory.
type copied []byte

func (c copied) word(at int) uint64 { return binary.NativeEndian.Uint64(c[at:]) }

var errNotCopied = errors.New("this is not in the copy")

func (c copied) ReadAt(to []byte, from int64) (int, error) {
	if len(to) == 0 {
		return 0, nil
	}
	for part := range parts {
		begin, size := c.word(CopyParts+16*int(part)), c.word(CopyParts+16*int(part)+8)
		at := uint64(from) - begin
		if size <= uint64(MostOf[part]) && at < size && part.At()+int(size) <= len(c) {
			if n := copy(to, c[part.At()+int(at):part.At()+int(size)]); n == len(to) {
				return n, nil
			}
		}
	}
	return 0, errNotCopied
}

// Learn keeps what a code object of a process said of itself when it ran, and no longer what another said at that address.
func (p *Processes) Learn(pid int, record []byte) {
	if len(record) < CopyText {
		return
	}
	c := copied(record)
	its := p.Get(pid)
	if its == nil {
		if its = p.told(pid, c); its == nil {
			return
		}
	}
	code := c.word(CopyCode)
	delete(its.known, code)
	from := view{its.Layout, c}
	f, ok := from.function(code)
	if !ok {
		return // it is read from the process when it is first met
	}
	if f.lines == nil {
		f.lines, f.cut = from.begins(code), true
		if whole, ok := its.view.bytes(c.word(CopyParts + 16*int(Lines))); ok && len(whole) > len(f.lines) && string(whole[:len(f.lines)]) == string(f.lines) {
			f.lines, f.cut = whole, false
		}
	}
	its.keep(code, f)
}

// begins is what a copy has of a table of lines that is cut.
func (v view) begins(code uint64) []byte {
	c := v.from.(copied)
	begin, size := c.word(CopyParts+16*int(Lines)), c.word(CopyParts+16*int(Lines)+8)
	if size <= v.names.bytes || size > uint64(MostOf[Lines]) {
		return nil
	}
	b, _ := v.read(begin+v.names.bytes, int(size-v.names.bytes))
	return b
}

// told makes a process known by what itself told of its interpreter: it may have ended. nil if that is no version that is known.
func (p *Processes) told(pid int, c copied) *Process {
	version, runtime := int(c.word(CopyVersion)), c.word(CopyParts+16*int(Runtime))
	its := &Process{Inside: c.word(CopyInside), found: time.Now(), known: make(map[uint64]uint64)}
	var err error
	if its.Layout, err = (view{from: c}).layout(runtime, version); err != nil {
		return nil
	}
	its.from = copied(make([]byte, CopyText)) // nothing, if it has ended
	if memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid)); err == nil {
		its.memory, its.from = memory, memory
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[pid] = its
	return its
}

package python

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
)

// Processes are the processes that run Python. Any goroutine may use a Processes.
type Processes struct {
	setLayout   func(pid int, l Layout) error
	clearLayout func(pid int)

	mu    sync.Mutex
	byPID map[int]*Process
}

// NewProcesses returns an empty Processes. It calls setLayout for each process that it finds, with the
// layout of its interpreter, and clearLayout when that is no longer valid.
func NewProcesses(setLayout func(pid int, l Layout) error, clearLayout func(pid int)) *Processes {
	return &Processes{setLayout: setLayout, clearLayout: clearLayout, byPID: make(map[int]*Process)}
}

// AwaitInterpreter polls a process that has just started for its interpreter, for at most two seconds. The
// interpreter is loaded early, and must be known before the first call of the driver.
func (p *Processes) AwaitInterpreter(pid int) {
	const most, longest = 2 * time.Second, 16 * time.Millisecond
	for begin, wait := time.Now(), time.Millisecond; time.Since(begin) < most; wait = min(2*wait, longest) {
		at := time.Now()
		mappings, err := procfs.ReadMaps(pid)
		if err != nil || p.Detect(pid, mappings, at) {
			return
		}
		time.Sleep(wait)
	}
}

// Detect finds a process's interpreter in its mappings at a moment, and reports whether it is known.
func (p *Processes) Detect(pid int, mappings []procfs.Mapping, at time.Time) (found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byPID[pid] != nil {
		return true
	}
	for _, m := range mappings {
		if !strings.Contains(filepath.Base(m.Path), "python") {
			continue
		}
		its, err := open(pid, m)
		if err != nil {
			continue // a module, or an unknown version: the interpreter's own frames stay
		}
		if err := p.setLayout(pid, its.Layout); err != nil {
			its.close()
			continue
		}
		its.found = at
		p.byPID[pid] = its
		return true
	}
	return false
}

// Get returns a process that runs Python; nil if it does not. The result is valid until Forget.
func (p *Processes) Get(pid int) *Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byPID[pid]
}

// Forget removes the interpreter that a process ran until a moment. It keeps one that was found later: the
// event of the moment may be read late.
func (p *Processes) Forget(pid int, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if its := p.byPID[pid]; its != nil && its.found.Before(until) {
		p.clearLayout(pid)
		its.close()
		delete(p.byPID, pid)
	}
}

// A code object may be freed right after it ran, and its process may end. So the probe or the preloaded
// library that first sees it copies what names it: the parts of memory that are read for a name. A part
// that is too long is truncated, and the rest is read from the process, if that is still possible.

// Part is a part of a copy.
type Part int

// The parts of a copy, in its order.
const (
	Object  Part = iota // the code object
	File                // a string
	Name                // a string
	Runtime             // _PyRuntime with the debug offsets; empty in the kernel's copies
	Lines               // a bytes object with the line table
	parts
)

const mostLines = 4 << 10

// MostOf is the maximum size of each part, in bytes.
var MostOf = [parts]int{Object: 192, File: 512, Name: 256, Runtime: 8 * 96, Lines: mostLines}

// Byte offsets in a copy. It starts like an event.
const (
	CopyCode        = 24                        // the address of the code object
	CopyVersion     = 32                        // of Python; 0 if the process is known
	CopyCodeAddress = 40                        // an address in the interpreter's code; 0 if the process is known
	CopyParts       = 48                        // the address of each part, and its size
	CopyText        = CopyParts + 16*int(parts) // the parts, each at its At
)

// At returns the offset of a part in a copy.
func (p Part) At() int {
	at := CopyText
	for before := range p {
		at += MostOf[before]
	}
	return at
}

// LargestCopy is at least the size of a copy.
const LargestCopy = CopyText + 2<<10 + mostLines

// CopySize returns the size of a copy with the given size of the line table.
func CopySize(lines int) int { return Lines.At() + lines }

// copied is a copy. It is read like the memory of a process.
type copied []byte

func (c copied) word(at int) uint64 { return binary.NativeEndian.Uint64(c[at:]) }

var errNotCopied = errors.New("this is not in the copy")

func (c copied) ReadAt(to []byte, from int64) (int, error) {
	if n := copy(to, c.rest(uint64(from))); n < len(to) {
		return 0, errNotCopied
	}
	return len(to), nil
}

// rest returns the bytes from an address on; none if it is in no part. Parts may overlap: more is copied of a
// string than it may have.
func (c copied) rest(from uint64) (longest []byte) {
	for part := range parts {
		begin, size := c.word(CopyParts+16*int(part)), c.word(CopyParts+16*int(part)+8)
		at := from - begin
		if size <= uint64(MostOf[part]) && at < size && part.At()+int(size) <= len(c) && int(size-at) > len(longest) {
			longest = c[part.At()+int(at) : part.At()+int(size)]
		}
	}
	return longest
}

// AddCode adds the copy of a code object of a process. It replaces another code object at the same
// address.
func (p *Processes) AddCode(pid int, record []byte) {
	if len(record) < CopyText {
		return
	}
	c := copied(record)
	its := p.Get(pid)
	if its == nil {
		if its = p.fromCopy(pid, c); its == nil {
			return
		}
	}
	code := c.word(CopyCode)
	its.functions.forget(code)
	from := memoryView{its.Layout, c}
	f, ok := from.function(code)
	if !ok {
		return
	}
	if strings.HasSuffix(f.file, cutOff) || strings.HasSuffix(f.name, cutOff) {
		if digest, ok := from.digest(code); ok {
			if whole, ok := its.functionNow(code, digest); ok {
				f = whole
			}
		}
	}
	if f.lines == nil {
		f.lines, f.truncated = from.truncatedLines(), true
		if whole, ok := its.memoryView.bytes(c.word(CopyParts + 16*int(Lines))); ok && len(whole) > len(f.lines) && string(whole[:len(f.lines)]) == string(f.lines) {
			f.lines, f.truncated = whole, false
		}
	}
	its.keep(code, f)
}

// truncatedLines returns the part of a truncated line table that a copy has.
func (v memoryView) truncatedLines() []byte {
	c := v.from.(copied)
	return bytes.Clone(c.rest(c.word(CopyParts+16*int(Lines)) + v.names.bytes))
}

// fromCopy adds a process by its own report of its interpreter: it may have ended. It returns nil if the
// version is unknown.
func (p *Processes) fromCopy(pid int, c copied) *Process {
	version, runtime := int(c.word(CopyVersion)), c.word(CopyParts+16*int(Runtime))
	its := &Process{CodeAddress: c.word(CopyCodeAddress), found: time.Now()}
	var err error
	if its.Layout, err = (memoryView{from: c}).layout(runtime, version); err != nil {
		return nil
	}
	its.from = copied(make([]byte, CopyText)) // empty, if the process has ended
	if memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid)); err == nil {
		its.memory, its.from = memory, memory
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byPID[pid] = its
	return its
}

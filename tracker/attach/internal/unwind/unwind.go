// Package unwind unwinds stacks by the tables that compilers write into .eh_frame, as debuggers and C++
// exceptions do: it needs no frame pointers. It works on a copy of registers and stack, reads no memory
// of a process, and knows no symbols.
//
// The tables are those of the Linux Standard Base (Core, chapter 10.6), with the call frame instructions of DWARF 5,
// section 6.4.2.
package unwind

import (
	"encoding/binary"
	"math/bits"
)

// Machine describes an architecture: DWARF's numbers of its registers, and the unwind rule of functions
// with a frame pointer.
type Machine struct {
	sp, ra  int
	address uint64 // mask of the address bits in a return address: others may sign it
	frame   rule   // of a function with a frame pointer
}

// AMD64 and ARM64 are by their psABIs.
var (
	AMD64 = &Machine{sp: 7, ra: 16, address: 1<<64 - 1, frame: framePointerRule(6, 16)}
	ARM64 = &Machine{sp: 31, ra: 30, address: 1<<48 - 1, frame: framePointerRule(29, 30)}
)

// framePointerRule is the unwind rule of a function with a frame pointer: the caller's is saved where it
// points to, and the return address behind that.
func framePointerRule(fp, ra uint8) rule {
	return rule{
		cfa:   location{kind: registerPlus, register: fp, offset: 16},
		saved: []savedRegister{{fp, location{kind: atCFA, offset: -16}}, {ra, location{kind: atCFA, offset: -8}}},
	}
}

// FramePointerRule returns the CompactRule of a function with a frame pointer.
func (m *Machine) FramePointerRule() CompactRule {
	s, _ := m.frame.compact(m)
	return s
}

// Address returns the mask of the address bits in a return address. On ARM the others may sign it.
func (m *Machine) Address() uint64 { return m.address }

// Below returns m for a kernel that gives programs no address above top. Higher bits of a return address
// are its signature, whose size depends on the kernel.
func (m Machine) Below(top uint64) *Machine {
	m.address = 1<<bits.Len64(top) - 1
	return &m
}

// numRegisters bounds the numbers of the registers that unwinding needs.
const numRegisters = 33

// Registers returns a thread's registers, of which only the program counter, the stack pointer and the
// frame pointer are known.
func (m *Machine) Registers(pc, sp, fp uint64) (r Registers) {
	r[m.ra], r[m.sp], r[m.frame.cfa.register] = pc, sp, fp
	return r
}

// Registers are a thread's registers by DWARF's numbers. The register of the return address holds
// the innermost frame's program counter.
type Registers [numRegisters]uint64

// Thread is the registers of a thread, and a copy of its stack from the stack pointer on.
type Thread struct {
	*Machine
	Registers  Registers
	Stack      []byte
	Trampoline Trampoline

	last   Registers // registers where Walk ended
	framed bool      // whether the frame there has its own frame pointer
}

// Trampoline is a return address that the kernel has replaced by that of a uretprobe's trampoline. The
// zero Trampoline is none.
type Trampoline struct {
	Address uint64 // of the trampoline
	Return  uint64 // the replaced return address
	SP      uint64 // the stack pointer after the return
}

// replaceTrampoline replaces the address of the trampoline by the return address, and reports whether
// that is known.
func (c *Thread) replaceTrampoline(regs *Registers, onRule func(pc uint64, s CompactRule)) bool {
	if c.Trampoline.Address == 0 || regs[c.ra] != c.Trampoline.Address {
		return true
	}
	if onRule != nil {
		onRule(c.Trampoline.Address, CompactRule{Base: FromTrampoline})
	}
	regs[c.ra] = c.Trampoline.Return
	return regs[c.sp] == c.Trampoline.SP
}

// End says why a walk ended.
type End int

const (
	Outermost     End = iota // the last frame has no caller
	NoCaller                 // the caller of the last frame is known neither by a table nor by a frame pointer
	BeyondCopy               // the next frame lies beyond the copy
	TooManyFrames            // there are more frames than asked for
	AtTrampoline             // the next return address is that of a trampoline, and the replaced one is unknown
)

// Finder returns the unwind table of the code at an address, and the address within the table's file.
// The table is nil for code without one, such as Go's, which has frame pointers. code is false if there
// is no code at the address.
type Finder func(pc uint64) (t *Table, address uint64, code bool)

// Walk appends the return addresses of a thread to frames, innermost first, and says why there are
// no more. It calls onRule, unless that is nil, for each address whose unwind rule is a
// CompactRule.
func (c *Thread) Walk(frames []uint64, most int, find Finder, onRule func(pc uint64, s CompactRule)) ([]uint64, End) {
	regs, rule := c.Registers, &c.frame
	defer func() { c.last, c.framed = regs, c.keepsFramePointer(rule, &regs) }()
	if !c.replaceTrampoline(&regs, onRule) {
		return frames, AtTrampoline
	}
	table, address, _ := find(regs[c.ra] - 1) // within the call, not after it
	called := true
	for {
		if len(frames) == most {
			return frames, TooManyFrames
		}
		frames = append(frames, regs[c.ra])
		rule = &c.frame
		if table != nil {
			if its := table.ruleAt(address); its != nil {
				rule = its
			}
		}
		if s, ok := rule.compact(c.Machine); ok && called && onRule != nil {
			onRule(regs[c.ra], s)
		}
		next, end := c.caller(rule, &regs)
		switch {
		case end != found:
			return frames, End(end)
		case next[c.ra] == 0:
			return frames, Outermost
		case next[c.sp] <= regs[c.sp]: // a caller's frame is at a higher address
			return frames, NoCaller
		case !c.replaceTrampoline(&next, onRule):
			return frames, AtTrampoline
		}
		at := next[c.ra] - 1
		if called = !rule.signal; !called { // the frame was interrupted
			at++
		}
		var code bool
		if table, address, code = find(at); !code {
			return frames, NoCaller
		}
		regs = next
	}
}

// Beyond returns the return addresses in framed, a stack from frame pointers, that follow the end of
// Walk: Walk ends where a frame pointer leads out of the copy, for example from C to a goroutine's stack.
// It returns none if the last frame has no frame pointer: the register then holds that of a frame
// further out, and the callers between the two are not in framed.
func (c *Thread) Beyond(framed []uint64) []uint64 {
	if !c.framed {
		return nil
	}
	fp := c.frame.cfa.register
	at, last := c.Registers[fp], c.last[fp]
	for at != last && len(framed) > 1 {
		next, end := c.read(at)
		if end != found {
			return nil
		}
		at, framed = next, framed[1:]
	}
	if at != last || len(framed) == 0 {
		return nil
	}
	return framed[1:]
}

// keepsFramePointer reports whether the frame pointer register belongs to this frame: it then points to
// the saved frame pointer of the caller.
func (c *Thread) keepsFramePointer(r *rule, regs *Registers) bool {
	fp := c.frame.cfa.register
	cfa, end := r.cfa.value(c, regs, 0)
	for _, s := range r.saved {
		if s.register == fp && end == found {
			return s.location.kind == atCFA && regs[fp] == cfa+uint64(s.location.offset)
		}
	}
	return false
}

// found is not an End: there is a caller.
const found End = -1

// caller returns the registers of the caller of a frame.
func (c *Thread) caller(r *rule, regs *Registers) (next Registers, end End) {
	if r.outermost {
		return next, Outermost
	}
	next = *regs
	cfa, end := r.cfa.value(c, regs, 0)
	if end != found {
		return next, end
	}
	next[c.sp] = cfa
	returns := false
	for _, s := range r.saved {
		if next[s.register], end = s.location.value(c, regs, cfa); end != found {
			return next, end
		}
		returns = returns || int(s.register) == c.ra
	}
	next[c.ra] &= c.address
	if !returns {
		return next, NoCaller
	}
	return next, found
}

// maxStack is the largest size of a stack: an address further away is not in it.
const maxStack = 1 << 30

// read returns a word of the stack.
func (c *Thread) read(at uint64) (uint64, End) {
	from := at - c.Registers[c.sp]
	switch size := uint64(len(c.Stack)); {
	case from+8 <= size && from < size:
		return binary.LittleEndian.Uint64(c.Stack[from:]), found
	case from < maxStack:
		return 0, BeyondCopy
	}
	return 0, NoCaller
}

// Package unwind finds the callers of a function that keeps no frame pointer, as a debugger and C++'s
// exceptions do: by the tables that compilers write into .eh_frame. It works on a copy of registers and stack,
// reads no memory of a process, and knows no names.
//
// The tables are those of the Linux Standard Base (Core, chapter 10.6), with the call frame instructions of DWARF 5,
// section 6.4.2.
package unwind

import (
	"encoding/binary"
	"math/bits"
)

// Machine describes an architecture: DWARF's numbers of its registers, and what a function with a
// frame pointer does.
type Machine struct {
	sp, ra  int
	address uint64 // the bits of a return address that are not its signature
	frame   rule   // of a function with a frame pointer
}

// AMD64 and ARM64 are by their psABIs.
var (
	AMD64 = &Machine{sp: 7, ra: 16, address: 1<<64 - 1, frame: framed(6, 16)}
	ARM64 = &Machine{sp: 31, ra: 30, address: 1<<48 - 1, frame: framed(29, 30)}
)

// framed is the rule of a function with a frame pointer: the caller's is where it points to, and the return
// address behind it.
func framed(fp, ra uint8) rule {
	return rule{
		cfa:   place{how: registerPlus, register: fp, offset: 16},
		saved: []saved{{fp, place{how: atCFA, offset: -16}}, {ra, place{how: atCFA, offset: -8}}},
	}
}

// Framed is the Step of a function that keeps a frame pointer.
func (m *Machine) Framed() Step {
	s, _ := m.frame.step(m)
	return s
}

// Address is the bits of a return address: on ARM the others may have its signature.
func (m *Machine) Address() uint64 { return m.address }

// Below returns a machine as m, on which programs have no address above top. What a return address has in higher bits is its signature:
// how many bits that takes depends on the kernel.
func (m Machine) Below(top uint64) *Machine {
	m.address = 1<<bits.Len64(top) - 1
	return &m
}

// numRegisters is more than the highest number of a register that tells where a caller is.
const numRegisters = 33

// Registers returns a thread's registers when only three are known: its program counter, stack
// pointer and frame pointer.
func (m *Machine) Registers(pc, sp, fp uint64) (r Registers) {
	r[m.ra], r[m.sp], r[m.frame.cfa.register] = pc, sp, fp
	return r
}

// Registers are a thread's registers by DWARF's numbers. The register of the return address holds
// the innermost frame's program counter.
type Registers [numRegisters]uint64

// Copy is the registers of a thread, and the part of its stack from the stack pointer on.
type Copy struct {
	*Machine
	Registers Registers
	Stack     []byte
	Hidden    Hidden

	last   Registers // where a Walk ended
	framed bool      // and whether that frame has its own frame pointer there
}

// Hidden is a return address that the kernel has put another in the place of. The zero value is none.
type Hidden struct {
	Behind uint64 // what stands for it
	Return uint64
	SP     uint64 // the stack pointer behind it
}

// restore puts a hidden return address into its register, and reports whether it is known.
func (c *Copy) restore(regs *Registers, tell func(pc uint64, s Step)) bool {
	if c.Hidden.Behind == 0 || regs[c.ra] != c.Hidden.Behind {
		return true
	}
	if tell != nil {
		tell(c.Hidden.Behind, Step{Begin: Kept})
	}
	regs[c.ra] = c.Hidden.Return
	return regs[c.sp] == c.Hidden.SP
}

// End says why a walk ended.
type End int

const (
	Outermost End = iota // the last frame has no caller
	Lost                 // no table says where the last frame has its caller, and no frame pointer does
	CopyEnds             // the next frame lies beyond the copy
	Full                 // there are more frames than were asked for
	IsHidden             // another return address stands in the place of the next, which is not known
)

// Finder returns the table of the code at an address, and the address as the table counts it. The table of code
// without one is nil: Go has none, and keeps frame pointers. It reports whether there is code at all.
type Finder func(pc uint64) (t *Table, address uint64, code bool)

// Walk appends the return addresses of a thread to frames, innermost first, and says why there are no more. It tells of each address
// how to get from its frame to the caller, where that is a Step; tell may be nil.
func (c *Copy) Walk(frames []uint64, most int, find Finder, tell func(pc uint64, s Step)) ([]uint64, End) {
	regs, rule := c.Registers, &c.frame
	defer func() { c.last, c.framed = regs, c.keepsPointer(rule, &regs) }()
	if !c.restore(&regs, tell) {
		return frames, IsHidden
	}
	table, address, _ := find(regs[c.ra] - 1) // within the call, not after it
	called := true
	for {
		if len(frames) == most {
			return frames, Full
		}
		frames = append(frames, regs[c.ra])
		rule = &c.frame
		if table != nil {
			if its := table.find(address); its != nil {
				rule = its
			}
		}
		if s, ok := rule.step(c.Machine); ok && called && tell != nil {
			tell(regs[c.ra], s)
		}
		next, end := c.caller(rule, &regs)
		switch {
		case end != found:
			return frames, End(end)
		case next[c.ra] == 0:
			return frames, Outermost
		case next[c.sp] <= regs[c.sp]: // a caller's frame is at a higher address
			return frames, Lost
		case !c.restore(&next, tell):
			return frames, IsHidden
		}
		at := next[c.ra] - 1
		if called = !rule.signal; !called { // the frame was interrupted
			at++
		}
		var code bool
		if table, address, code = find(at); !code {
			return frames, Lost
		}
		regs = next
	}
}

// Beyond returns the return addresses in framed, a stack from frame pointers, that follow the place
// where Walk ended. Walk ends where a frame pointer leads out of the copy, for example from C to a
// goroutine's stack. It returns none if the frame there keeps no frame pointer: the register then has that of
// another frame further out, and the callers between the two are not in framed.
func (c *Copy) Beyond(framed []uint64) []uint64 {
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

// keepsPointer reports whether the frame pointer's register belongs to this frame: it then points
// to where the frame saved its caller's.
func (c *Copy) keepsPointer(r *rule, regs *Registers) bool {
	fp := c.frame.cfa.register
	cfa, end := r.cfa.value(c, regs, 0)
	for _, s := range r.saved {
		if s.register == fp && end == found {
			return s.place.how == atCFA && regs[fp] == cfa+uint64(s.place.offset)
		}
	}
	return false
}

// found is no End: there is a caller.
const found End = -1

// caller returns the registers that the caller of a frame has.
func (c *Copy) caller(r *rule, regs *Registers) (next Registers, end End) {
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
		if next[s.register], end = s.place.value(c, regs, cfa); end != found {
			return next, end
		}
		returns = returns || int(s.register) == c.ra
	}
	next[c.ra] &= c.address
	if !returns {
		return next, Lost
	}
	return next, found
}

// maxStack is the largest stack of a thread: an address further away is not in its frames.
const maxStack = 1 << 30

// read returns a word of the stack.
func (c *Copy) read(at uint64) (uint64, End) {
	from := at - c.Registers[c.sp]
	switch size := uint64(len(c.Stack)); {
	case from+8 <= size && from < size:
		return binary.LittleEndian.Uint64(c.Stack[from:]), found
	case from < maxStack:
		return 0, CopyEnds
	}
	return 0, Lost
}

// Package unwind unwinds stacks by the tables that compilers write into .eh_frame, as debuggers and C++
// exceptions do: it needs no frame pointers. It works on a copy of registers and stack, reads no memory
// of a process, and knows no symbols.
//
// The tables are those of the Linux Standard Base (Core, chapter 10.6), with the call frame instructions of DWARF 5,
// section 6.4.2.
package unwind

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// Machine describes an architecture: DWARF's numbers of its registers, and the unwind rule of functions
// with a frame pointer.
type Machine struct {
	sp, ra  int
	address uint64 // mask of the address bits in a return address: others may sign it
	frame   rule   // of a function with a frame pointer

	returnSize int64 // bytes on the stack that a call takes
}

// AMD64 and ARM64 are by their psABIs.
var (
	AMD64 = &Machine{sp: 7, ra: 16, address: 1<<64 - 1, frame: framePointerRule(6, 16), returnSize: 8}
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

// rule is the unwind rule of an address: how to get from its frame to the caller.
type rule struct {
	cfa       location // the canonical frame address: the caller's stack pointer
	saved     []savedRegister
	outermost bool // the return address is undefined
	signal    bool // of a signal handler: it returns to an interrupted instruction
}

// savedRegister is where a register of the caller is saved.
type savedRegister struct {
	register uint8
	location location
}

// location is a register save location, or the value itself.
type location struct {
	kind       locationKind
	register   uint8
	offset     int64
	expression []byte
}

// CompactRule is an unwind rule that a BPF program can apply: it needs the stack pointer and the frame
// pointer only. The return address is saved at the CFA plus ReturnOffset.
type CompactRule struct {
	Base         Base // of the CFA
	CFAOffset    int64
	ReturnOffset int64
	FPBase       Base // of the place where the caller's frame pointer is saved; NoBase: it is unchanged
	FPOffset     int64
}

// Base is what an offset of a CompactRule is added to.
type Base int64

const (
	NoBase         Base = iota // of the CFA: the frame is the outermost
	FromSP                     // the stack pointer; of FPBase, the CFA
	FromFP                     // the frame pointer
	DerefFP                    // the CFA is the word at the frame pointer plus CFAOffset
	FromTrampoline             // the address is a trampoline's: a probe saved the return address
)

// compact converts a rule to a CompactRule, if possible.
func (r *rule) compact(m *Machine) (s CompactRule, ok bool) {
	if r.outermost {
		return s, true
	}
	fp := m.frame.cfa.register
	switch its := r.cfa; its.kind {
	case registerPlus:
		s.Base, s.CFAOffset = FromFP, its.offset
		if int(its.register) == m.sp {
			s.Base = FromSP
		} else if its.register != fp {
			return s, false
		}
	case expression:
		if s.CFAOffset, ok = registerOffset(its.expression, fp, opDeref); !ok {
			return s, false
		}
		s.Base = DerefFP
	default:
		return s, false
	}
	returns := false
	for _, its := range r.saved {
		switch {
		case int(its.register) == m.ra:
			s.ReturnOffset, returns = its.location.offset, its.location.kind == atCFA
		case its.register != fp:
		case its.location.kind == atCFA:
			s.FPBase, s.FPOffset = FromSP, its.location.offset
		case its.location.kind == atExpression:
			if s.FPOffset, ok = registerOffset(its.location.expression, fp); !ok {
				return s, false
			}
			s.FPBase = FromFP
		default:
			return s, false
		}
	}
	return s, returns && !r.signal
}

// registerOffset reports whether an expression is a register plus an offset, followed by the operations
// in then.
func registerOffset(code []byte, register uint8, then ...byte) (offset int64, ok bool) {
	d := decoder{data: code}
	if d.byte() != opBreg0+register {
		return 0, false
	}
	offset = d.sleb()
	return offset, !d.bad && bytes.Equal(code[d.at:], then)
}

type locationKind uint8

const (
	sameValue    locationKind = iota
	registerPlus              // the value is a register plus the offset
	atCFA                     // saved at the CFA plus the offset
	cfaPlus                   // the value is the CFA plus the offset
	atExpression              // saved where an expression says
	expression                // the value of an expression
	undefined
)

func (p location) value(c *Thread, regs *Registers, cfa uint64) (uint64, End) {
	switch p.kind {
	case registerPlus:
		return regs[p.register] + uint64(p.offset), found
	case atCFA:
		return c.read(cfa + uint64(p.offset))
	case cfaPlus:
		return cfa + uint64(p.offset), found
	case atExpression:
		at, end := evaluate(p.expression, c, regs, cfa)
		if end != found {
			return 0, end
		}
		return c.read(at)
	case expression:
		return evaluate(p.expression, c, regs, cfa)
	}
	return 0, NoCaller
}

// Operations of DWARF expressions (DWARF 5, section 7.7.1): those that compilers and the C library use.
const (
	opDeref      = 0x06
	opConst1u    = 0x08
	opConst1s    = 0x09
	opConst2u    = 0x0a
	opConstU     = 0x10
	opConstS     = 0x11
	opAnd        = 0x1a
	opMinus      = 0x1c
	opPlus       = 0x22
	opPlusUConst = 0x23
	opShl        = 0x24
	opGe         = 0x2a
	opLit0       = 0x30
	opLit31      = 0x4f
	opBreg0      = 0x70
	opBreg31     = 0x8f
)

const maxOperations = 64 // of an expression

// evaluate evaluates an expression, with the CFA on its stack.
func evaluate(code []byte, c *Thread, regs *Registers, cfa uint64) (uint64, End) {
	d := decoder{data: code}
	stack := append(make([]uint64, 0, 8), cfa)
	pop := func() (v uint64) {
		if len(stack) > 0 {
			v, stack = stack[len(stack)-1], stack[:len(stack)-1]
		}
		return v
	}
	for n := 0; !d.done() && n < maxOperations; n++ {
		switch op := d.byte(); {
		case op >= opLit0 && op <= opLit31:
			stack = append(stack, uint64(op-opLit0))
		case op >= opBreg0 && op <= opBreg31:
			stack = append(stack, regs[op-opBreg0]+uint64(d.sleb()))
		case op == opConst1u:
			stack = append(stack, uint64(d.byte()))
		case op == opConst1s:
			stack = append(stack, uint64(int8(d.byte())))
		case op == opConst2u:
			stack = append(stack, d.fixed(2))
		case op == opConstU:
			stack = append(stack, d.uleb())
		case op == opConstS:
			stack = append(stack, uint64(d.sleb()))
		case op == opPlusUConst:
			stack = append(stack, pop()+d.uleb())
		case op == opDeref:
			v, end := c.read(pop())
			if end != found {
				return 0, end
			}
			stack = append(stack, v)
		default:
			b, a := pop(), pop()
			v, ok := binaryOperation(op, a, b)
			if !ok {
				return 0, NoCaller
			}
			stack = append(stack, v)
		}
	}
	if d.bad || len(stack) == 0 {
		return 0, NoCaller
	}
	return pop(), found
}

func binaryOperation(op byte, a, b uint64) (uint64, bool) {
	switch op {
	case opAnd:
		return a & b, true
	case opMinus:
		return a - b, true
	case opPlus:
		return a + b, true
	case opShl:
		return a << min(b, 64), true
	case opGe:
		if int64(a) >= int64(b) {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

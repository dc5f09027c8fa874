package unwind

import "bytes"

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

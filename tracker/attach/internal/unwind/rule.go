package unwind

import "bytes"

// rule is how to get from a frame to its caller.
type rule struct {
	cfa       place // where the frame begins: the caller's stack pointer
	saved     []saved
	outermost bool // the return address is undefined
	signal    bool // a signal handler's: what it returns to was interrupted
}

// saved is where a register of the caller's is.
type saved struct {
	register uint8
	place    place
}

// place is a value, or where it is kept.
type place struct {
	how        how
	register   uint8
	offset     int64
	expression []byte
}

// Step is a rule in few numbers, for those who cannot read tables, such as a probe: it needs the stack pointer and the frame pointer
// alone. From where a frame begins its return address is Return bytes on.
type Step struct {
	Begin  Base // where the frame begins
	Offset int64
	Return int64
	Saved  Base // where the caller's frame pointer is kept
	At     int64
}

// Base is where a Step begins to count.
type Base int64

const (
	Nowhere      Base = iota // the frame is the outermost; the frame pointer is unchanged
	Stack                    // at the stack pointer; for a kept rule, at the beginning of the frame
	Frame                    // at the frame pointer
	ThroughFrame             // at the address that is kept at the frame pointer and the offset
	Kept                     // the return address stands for another, which the probe kept
)

// step returns a rule as a Step, if it is one.
func (r *rule) step(m *Machine) (s Step, ok bool) {
	if r.outermost {
		return s, true
	}
	fp := m.frame.cfa.register
	switch its := r.cfa; its.how {
	case registerPlus:
		s.Begin, s.Offset = Frame, its.offset
		if int(its.register) == m.sp {
			s.Begin = Stack
		} else if its.register != fp {
			return s, false
		}
	case expression:
		if s.Offset, ok = at(its.expression, fp, opDeref); !ok {
			return s, false
		}
		s.Begin = ThroughFrame
	default:
		return s, false
	}
	returns := false
	for _, its := range r.saved {
		switch {
		case int(its.register) == m.ra:
			s.Return, returns = its.place.offset, its.place.how == atCFA
		case its.register != fp:
		case its.place.how == atCFA:
			s.Saved, s.At = Stack, its.place.offset
		case its.place.how == atExpression:
			if s.At, ok = at(its.place.expression, fp); !ok {
				return s, false
			}
			s.Saved = Frame
		default:
			return s, false
		}
	}
	return s, returns && !r.signal
}

// at reports whether an expression is a register plus an offset and the operations that follow.
func at(code []byte, register uint8, then ...byte) (offset int64, ok bool) {
	d := decoder{data: code}
	if d.byte() != opBreg0+register {
		return 0, false
	}
	offset = d.sleb()
	return offset, !d.bad && bytes.Equal(code[d.at:], then)
}

type how uint8

const (
	unchanged    how = iota
	registerPlus     // a register and the offset
	atCFA            // in memory, at the frame's beginning and the offset
	cfaPlus          // the frame's beginning and the offset
	atExpression     // in memory, where an expression says
	expression       // what an expression says
	undefined
)

func (p place) value(c *Copy, regs *Registers, cfa uint64) (uint64, End) {
	switch p.how {
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
	return 0, Lost
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

const maxSteps = 64 // of an expression

// evaluate works an expression out, beginning with the frame's beginning on its stack.
func evaluate(code []byte, c *Copy, regs *Registers, cfa uint64) (uint64, End) {
	d := decoder{data: code}
	stack := append(make([]uint64, 0, 8), cfa)
	pop := func() (v uint64) {
		if len(stack) > 0 {
			v, stack = stack[len(stack)-1], stack[:len(stack)-1]
		}
		return v
	}
	for step := 0; !d.done() && step < maxSteps; step++ {
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
				return 0, Lost
			}
			stack = append(stack, v)
		}
	}
	if d.bad || len(stack) == 0 {
		return 0, Lost
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

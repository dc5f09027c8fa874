package unwind

// Call frame instructions (DWARF 5, section 7.24). Those of the first four have an operand in their lower six bits.
const (
	cfaAdvance = 0x40
	cfaOffset  = 0x80
	cfaRestore = 0xc0

	cfaNop              = 0x00
	cfaSetLoc           = 0x01
	cfaAdvance1         = 0x02
	cfaAdvance2         = 0x03
	cfaAdvance4         = 0x04
	cfaOffsetExtended   = 0x05
	cfaRestoreExtended  = 0x06
	cfaUndefined        = 0x07
	cfaSameValue        = 0x08
	cfaRegister         = 0x09
	cfaRemember         = 0x0a
	cfaRestoreState     = 0x0b
	cfaDefine           = 0x0c
	cfaDefineRegister   = 0x0d
	cfaDefineOffset     = 0x0e
	cfaDefineExpression = 0x0f
	cfaExpression       = 0x10
	cfaOffsetExtendedSF = 0x11
	cfaDefineSF         = 0x12
	cfaDefineOffsetSF   = 0x13
	cfaValOffset        = 0x14
	cfaValOffsetSF      = 0x15
	cfaValExpression    = 0x16
	cfaNegateRAWithPC   = 0x2c // of ARM: as the next, and where it was signed counts
	cfaNegateRAState    = 0x2d // of ARM: the return address is signed from here on, or no longer
	cfaArgsSize         = 0x2e
	cfaNegativeOffset   = 0x2f
)

// row is the rules of all registers at an address.
type row struct {
	cfa  location
	regs [numRegisters]location
}

// program runs the instructions of an entry up to an address.
type program struct {
	row
	cie        *cie
	initial    row // after the instructions of the CIE
	remembered []row
	at, until  uint64
	bad        bool
}

// rule returns the unwind rule at an address of the entry's function; nil if the entry is invalid.
func (e *entry) rule(address uint64) *rule {
	p := program{cie: e.cie, at: e.start, until: address}
	p.run(e.cie.instructions)
	p.initial = p.row
	p.run(e.instructions)
	if p.bad {
		return nil
	}
	r := &rule{cfa: p.cfa, signal: e.cie.signal}
	for i, at := range p.regs {
		switch {
		case at.kind == undefined && i == e.cie.ra:
			r.outermost = true
		case at.kind != sameValue && at.kind != undefined:
			r.saved = append(r.saved, savedRegister{uint8(i), at})
		}
	}
	return r
}

func (p *program) run(code []byte) {
	d := decoder{data: code}
	for !d.done() && !p.bad && p.at <= p.until {
		op := d.byte()
		switch low := op & 0x3f; op & 0xc0 {
		case cfaAdvance:
			p.at += uint64(low) * p.cie.code
		case cfaOffset:
			p.set(uint64(low), location{kind: atCFA, offset: int64(d.uleb()) * p.cie.data})
		case cfaRestore:
			p.restore(uint64(low))
		default:
			if !p.frame(op, &d) {
				p.register(op, &d)
			}
		}
		p.bad = p.bad || d.bad
	}
}

// frame runs an instruction that changes the location or the CFA, and reports whether op is one.
func (p *program) frame(op byte, d *decoder) bool {
	c := p.cie
	switch op {
	case cfaNop, cfaNegateRAState, cfaNegateRAWithPC:
	case cfaArgsSize:
		d.uleb()
	case cfaAdvance1:
		p.at += uint64(d.byte()) * c.code
	case cfaAdvance2:
		p.at += d.fixed(2) * c.code
	case cfaAdvance4:
		p.at += d.fixed(4) * c.code
	case cfaRemember:
		if p.remembered = append(p.remembered, p.row); len(p.remembered) > maxRemembered {
			p.bad = true
		}
	case cfaRestoreState:
		if n := len(p.remembered); n == 0 {
			p.bad = true
		} else {
			p.row, p.remembered = p.remembered[n-1], p.remembered[:n-1]
		}
	case cfaDefine:
		p.define(d.uleb(), int64(d.uleb()))
	case cfaDefineSF:
		p.define(d.uleb(), d.sleb()*c.data)
	case cfaDefineRegister:
		p.define(d.uleb(), p.cfa.offset)
	case cfaDefineOffset:
		p.cfa.offset = int64(d.uleb())
	case cfaDefineOffsetSF:
		p.cfa.offset = d.sleb() * c.data
	case cfaDefineExpression:
		p.cfa = location{kind: expression, expression: d.take(d.uleb())}
	default:
		return false
	}
	return true
}

const maxRemembered = 64

// register runs an instruction that changes the rule of a register.
func (p *program) register(op byte, d *decoder) {
	c, r := p.cie, d.uleb()
	switch op {
	case cfaOffsetExtended:
		p.set(r, location{kind: atCFA, offset: int64(d.uleb()) * c.data})
	case cfaOffsetExtendedSF:
		p.set(r, location{kind: atCFA, offset: d.sleb() * c.data})
	case cfaNegativeOffset:
		p.set(r, location{kind: atCFA, offset: -int64(d.uleb()) * c.data})
	case cfaValOffset:
		p.set(r, location{kind: cfaPlus, offset: int64(d.uleb()) * c.data})
	case cfaValOffsetSF:
		p.set(r, location{kind: cfaPlus, offset: d.sleb() * c.data})
	case cfaExpression:
		p.set(r, location{kind: atExpression, expression: d.take(d.uleb())})
	case cfaValExpression:
		p.set(r, location{kind: expression, expression: d.take(d.uleb())})
	case cfaRegister:
		other := d.uleb()
		if p.bad = p.bad || other >= numRegisters; !p.bad {
			p.set(r, location{kind: registerPlus, register: uint8(other)})
		}
	case cfaRestoreExtended:
		p.restore(r)
	case cfaUndefined:
		p.set(r, location{kind: undefined})
	case cfaSameValue:
		p.set(r, location{})
	default: // also cfaSetLoc, which no compiler writes into .eh_frame
		p.bad = true
	}
}

// set sets where a register is saved. Registers that unwinding does not need, such as vector registers,
// are ignored.
func (p *program) set(register uint64, at location) {
	if register < numRegisters {
		p.regs[register] = at
	}
}

func (p *program) restore(register uint64) {
	if register < numRegisters {
		p.regs[register] = p.initial.regs[register]
	}
}

func (p *program) define(register uint64, offset int64) {
	if register >= numRegisters {
		p.bad = true
		return
	}
	p.cfa = location{kind: registerPlus, register: uint8(register), offset: offset}
}

package unwind

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Table is the unwind table of a file. One goroutine at a time may use it.
type Table struct {
	frames  []byte // .eh_frame
	address uint64 // of its first byte
	index   []function
	cies    map[int]*cie
	rules   map[uint64]*rule // by address; nil if the address has no rule
}

// function is the start address of a function, and the offset of its entry.
type function struct {
	start uint64
	entry int
}

// maxTable is the size of the largest table that is read. The largest GPU libraries have tables of
// some 40 MB.
const maxTable = 256 << 20

// Read reads the unwind table of a file. The error says that there is none, as in most Go programs, or
// that it is invalid.
func Read(f *elf.File) (*Table, error) {
	section := f.Section(".eh_frame")
	if section == nil || section.Type == elf.SHT_NOBITS || section.Size == 0 {
		return nil, errors.New("the file has no .eh_frame")
	}
	if section.Size > maxTable {
		return nil, fmt.Errorf(".eh_frame of %d bytes: at most %d are read", section.Size, maxTable)
	}
	data, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("read .eh_frame: %w", err)
	}
	t := &Table{frames: data, address: section.Addr, cies: make(map[int]*cie), rules: make(map[uint64]*rule)}
	if t.index = t.sorted(f.Section(".eh_frame_hdr")); t.index == nil {
		t.index = t.scan()
	}
	return t, nil
}

// sorted reads the index that the linker wrote; nil if there is none.
func (t *Table) sorted(section *elf.Section) []function {
	if section == nil || section.Type == elf.SHT_NOBITS || section.Size > maxTable {
		return nil
	}
	data, err := section.Data()
	if err != nil || len(data) < 4 || data[0] != 1 {
		return nil
	}
	d := decoder{data: data, at: 4}
	here := section.Addr
	d.pointer(data[1], here, here) // of .eh_frame
	count := d.pointer(data[2], here, here)
	if data[2] == omitted || data[3] == omitted || count > uint64(len(data)) {
		return nil
	}
	index := make([]function, 0, min(count, uint64(len(data)/8)))
	for range count {
		start, entry := d.pointer(data[3], here, here), d.pointer(data[3], here, here)
		if d.bad || entry < t.address || entry-t.address >= uint64(len(t.frames)) {
			return nil
		}
		index = append(index, function{start, int(entry - t.address)})
	}
	if !slices.IsSortedFunc(index, byStart) {
		return nil
	}
	return index
}

func byStart(a, b function) int { return cmp.Compare(a.start, b.start) }

// scan reads all entries.
func (t *Table) scan() (index []function) {
	for at := 0; at < len(t.frames); {
		e, ok := t.entryAt(at)
		if !ok {
			break
		}
		if e.cie != nil {
			index = append(index, function{e.start, at})
		}
		at = e.end
	}
	slices.SortFunc(index, byStart)
	return index
}

// cie is a common information entry.
type cie struct {
	code         uint64 // code alignment factor
	data         int64  // data alignment factor
	ra           int
	encoding     byte // of a function's start address
	augmented    bool // entries have augmentation data
	signal       bool
	instructions []byte
}

// entry is a frame description entry or, if cie is nil, a common information entry.
type entry struct {
	cie          *cie
	start, size  uint64
	instructions []byte
	end          int // offset of the next
}

// entryAt reads the entry at an offset. ok is false at the end, which is an empty entry.
func (t *Table) entryAt(at int) (e entry, ok bool) {
	d := decoder{data: t.frames, at: at}
	length := d.fixed(4)
	if length == 0xffffffff {
		length = d.fixed(8)
	}
	begin := d.at
	if length == 0 || d.take(length) == nil {
		return e, false
	}
	e.end = d.at
	d = decoder{data: t.frames[:e.end], at: begin}
	back := d.fixed(4)
	if back == 0 {
		return e, true
	}
	if e.cie = t.cieAt(begin - int(back)); e.cie == nil {
		return e, false
	}
	e.start = d.pointer(e.cie.encoding, t.address, 0)
	e.size = d.pointer(e.cie.encoding&formatMask, t.address, 0)
	if e.cie.augmented {
		d.take(d.uleb())
	}
	if d.bad {
		return e, false
	}
	e.instructions = t.frames[d.at:e.end]
	return e, true
}

// cieAt reads the CIE at an offset, once; nil if it is invalid.
func (t *Table) cieAt(at int) *cie {
	if c, ok := t.cies[at]; ok {
		return c
	}
	t.cies[at] = nil
	if at < 0 || at >= len(t.frames) {
		return nil
	}
	d := decoder{data: t.frames, at: at}
	length := d.fixed(4)
	if length == 0xffffffff {
		length = d.fixed(8)
	}
	begin := d.at
	if d.take(length) == nil {
		return nil
	}
	end := d.at
	d = decoder{data: t.frames[:end], at: begin}
	d.fixed(4) // 0: it is a CIE
	version, augmentation := d.byte(), d.text()
	c := &cie{code: d.uleb(), data: d.sleb()}
	if version == 1 {
		c.ra = int(d.byte())
	} else {
		c.ra = int(d.uleb())
	}
	if !c.augment(&d, augmentation, t.address) || c.ra >= numRegisters {
		return nil
	}
	c.instructions = t.frames[d.at:end]
	t.cies[at] = c
	return c
}

// augment reads the data that an augmentation string describes.
func (c *cie) augment(d *decoder, what string, here uint64) bool {
	if what == "" {
		return !d.bad
	}
	if what[0] != 'z' {
		return false
	}
	c.augmented = true
	size := d.uleb()
	end := d.at + int(min(size, uint64(len(d.data)-d.at)))
	for _, letter := range what[1:] {
		switch letter {
		case 'R':
			c.encoding = d.byte()
		case 'P':
			d.pointer(d.byte()&^0x80, here, 0) // the encoding comes first; it may be the encoding of a pointer to it
		case 'L':
			d.byte()
		case 'S':
			c.signal = true
		case 'B', 'G': // how ARM's return addresses are signed, and memory tagged
		default:
			return false
		}
	}
	d.at = end
	return !d.bad
}

// Has reports whether the table has an unwind rule for an address.
func (t *Table) Has(address uint64) bool { return t.ruleAt(address) != nil }

// ruleAt returns the rule at an address; nil if there is none.
func (t *Table) ruleAt(address uint64) *rule {
	if r, ok := t.rules[address]; ok {
		return r
	}
	if len(t.rules) == maxRules {
		clear(t.rules)
	}
	r := t.compute(address)
	t.rules[address] = r
	return r
}

// maxRules is how many rules of a file are cached.
const maxRules = 1 << 16

// compute computes the rule at an address.
func (t *Table) compute(address uint64) *rule {
	e, ok := t.entryOf(address)
	if !ok {
		return nil
	}
	return e.rule(address)
}

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

// decoder reads a table. Reading beyond the end returns 0 and sets bad.
type decoder struct {
	data []byte
	at   int
	bad  bool
}

func (d *decoder) done() bool { return d.bad || d.at >= len(d.data) }

// take returns the next n bytes.
func (d *decoder) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.data)-d.at) {
		d.bad = true
		return nil
	}
	b := d.data[d.at : d.at+int(n)]
	d.at += int(n)
	return b
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

// fixed returns a number of n bytes.
func (d *decoder) fixed(n int) (v uint64) {
	var all [8]byte
	copy(all[:], d.take(uint64(n)))
	return binary.LittleEndian.Uint64(all[:])
}

func (d *decoder) uleb() (v uint64) {
	for shift := 0; shift < 64; shift += 7 {
		b := d.byte()
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
	d.bad = true
	return 0
}

func (d *decoder) sleb() int64 {
	var v int64
	for shift := 0; shift < 64; shift += 7 {
		b := d.byte()
		v |= int64(b&0x7f) << shift
		if b < 0x80 {
			if b&0x40 != 0 && shift+7 < 64 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
	d.bad = true
	return 0
}

func (d *decoder) text() string {
	start := d.at
	for d.byte() != 0 {
	}
	if d.bad {
		return ""
	}
	return string(d.data[start : d.at-1])
}

// Encodings of pointers (Linux Standard Base, chapter 10.5): the format is in the lower half, the base in
// the upper.
const (
	formatMask   = 0x0f
	formatULEB   = 0x01
	formatUData2 = 0x02
	formatUData4 = 0x03
	formatUData8 = 0x04
	formatSLEB   = 0x09
	formatSData2 = 0x0a
	formatSData4 = 0x0b
	formatSData8 = 0x0c
	fromMask     = 0x70
	fromHere     = 0x10
	fromHeader   = 0x30
	omitted      = 0xff
)

// pointer reads a pointer. here is the address of data[0], and header that of .eh_frame_hdr.
func (d *decoder) pointer(encoding byte, here, header uint64) (v uint64) {
	if encoding == omitted {
		return 0
	}
	place := here + uint64(d.at)
	switch encoding & formatMask {
	case 0, formatUData8, formatSData8:
		v = d.fixed(8)
	case formatULEB:
		v = d.uleb()
	case formatSLEB:
		v = uint64(d.sleb())
	case formatUData2:
		v = d.fixed(2)
	case formatUData4:
		v = d.fixed(4)
	case formatSData2:
		v = uint64(int64(int16(d.fixed(2))))
	case formatSData4:
		v = uint64(int64(int32(d.fixed(4))))
	default:
		d.bad = true
	}
	switch encoding & fromMask {
	case 0:
	case fromHere:
		v += place
	case fromHeader:
		v += header
	default:
		d.bad = true
	}
	return v
}

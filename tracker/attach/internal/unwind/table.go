package unwind

import (
	"cmp"
	"debug/elf"
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
	i, ok := slices.BinarySearchFunc(t.index, address, func(f function, a uint64) int { return cmp.Compare(f.start, a) })
	if !ok {
		i--
	}
	if i < 0 {
		return nil
	}
	e, ok := t.entryAt(t.index[i].entry)
	if !ok || e.cie == nil || address < e.start || address-e.start >= e.size {
		return nil
	}
	return e.rule(address)
}

package unwind

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"slices"
)

// Table is the tables of a file. It is for one goroutine at a time.
type Table struct {
	frames  []byte // .eh_frame
	address uint64 // of its first byte
	index   []function
	common  map[int]*common
	rules   map[uint64]*rule // by address; nil if the address has no rule
}

// function is where a function begins, and the offset of its entry.
type function struct {
	start uint64
	entry int
}

// maxTable is the size of the largest table that is read. The largest GPU libraries have tables of
// some 40 MB.
const maxTable = 256 << 20

// Read reads the tables of a file. A file without any, such as most programs in Go, is an error.
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
	t := &Table{frames: data, address: section.Addr, common: make(map[int]*common), rules: make(map[uint64]*rule)}
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
		e, ok := t.entry(at)
		if !ok {
			break
		}
		if e.common != nil {
			index = append(index, function{e.start, at})
		}
		at = e.end
	}
	slices.SortFunc(index, byStart)
	return index
}

// common is what several entries share (a CIE).
type common struct {
	code         uint64 // a unit of code advance, in bytes
	data         int64  // a unit of the offsets
	ra           int
	encoding     byte // encoding of a function's start
	augmented    bool // entries have data of their own
	signal       bool
	instructions []byte
}

// entry is a function's entry (an FDE) or, if common is nil, one that others share (a CIE).
type entry struct {
	common       *common
	start, size  uint64
	instructions []byte
	end          int // offset of the next
}

// entry reads the entry at an offset; ok is false at the end, which is an entry of no bytes.
func (t *Table) entry(at int) (e entry, ok bool) {
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
	if e.common = t.commonAt(begin - int(back)); e.common == nil {
		return e, false
	}
	e.start = d.pointer(e.common.encoding, t.address, 0)
	e.size = d.pointer(e.common.encoding&formatMask, t.address, 0)
	if e.common.augmented {
		d.take(d.uleb())
	}
	if d.bad {
		return e, false
	}
	e.instructions = t.frames[d.at:e.end]
	return e, true
}

// commonAt reads what entries have in common, once; nil if it cannot be read.
func (t *Table) commonAt(at int) *common {
	if c, ok := t.common[at]; ok {
		return c
	}
	t.common[at] = nil
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
	d.fixed(4) // 0: it is common
	version, augmentation := d.byte(), d.text()
	c := &common{code: d.uleb(), data: d.sleb()}
	if version == 1 {
		c.ra = int(d.byte())
	} else {
		c.ra = int(d.uleb())
	}
	if !c.augment(&d, augmentation, t.address) || c.ra >= numRegisters {
		return nil
	}
	c.instructions = t.frames[d.at:end]
	t.common[at] = c
	return c
}

// augment reads what an augmentation string says that there is.
func (c *common) augment(d *decoder, what string, here uint64) bool {
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

// Has reports whether the table says how to get from a frame at an address to its caller.
func (t *Table) Has(address uint64) bool { return t.find(address) != nil }

// find returns the rule at an address; nil if there is none.
func (t *Table) find(address uint64) *rule {
	if r, ok := t.rules[address]; ok {
		return r
	}
	if len(t.rules) == maxRules {
		clear(t.rules)
	}
	r := t.work(address)
	t.rules[address] = r
	return r
}

// maxRules is how many addresses of a file are remembered.
const maxRules = 1 << 16

// work works out the rule at an address.
func (t *Table) work(address uint64) *rule {
	i, ok := slices.BinarySearchFunc(t.index, address, func(f function, a uint64) int { return cmp.Compare(f.start, a) })
	if !ok {
		i--
	}
	if i < 0 {
		return nil
	}
	e, ok := t.entry(t.index[i].entry)
	if !ok || e.common == nil || address < e.start || address-e.start >= e.size {
		return nil
	}
	return e.rule(address)
}

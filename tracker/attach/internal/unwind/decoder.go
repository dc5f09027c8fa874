package unwind

import "encoding/binary"

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

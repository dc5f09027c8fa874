package pprof

import (
	"encoding/binary"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// The bytes of memory that a profile takes once it is parsed: for each part, such as
// a sample, a location, a label or a string, and for each byte within it. An ID of one or
// two bytes becomes two of eight.
const (
	partBytes   = 160
	insideBytes = 16
)

// perByte is how much memory a profile may take for each byte of its text, beyond
// bounded.Base. Those that programs write take 20 to 30.
const perByte = 48

// checkSize refuses a profile that needs more memory than the limit, or far more than its text,
// such as a million samples of no bytes each.
func checkSize(text []byte, limit int64) error {
	const sample, location = 2, 4 // the parts that have parts
	most := bounded.Base + perByte*int64(len(text))
	room := min(most, limit)
	for field, inside := range parts(text) {
		room -= partBytes + insideBytes*int64(len(inside))
		if field == sample || field == location {
			for range parts(inside) {
				room -= partBytes
			}
		}
		if room < 0 && most > limit {
			return fmt.Errorf("%w: what the profile holds takes more than %v of memory", bounded.ErrTooLarge, alloc.Bytes(limit))
		}
		if room < 0 {
			return fmt.Errorf("%w: %d bytes of profile hold more parts than a profile of that size has reason to", bounded.ErrTooLarge, len(text))
		}
	}
	return nil
}

// parts yields each field of a protocol buffer that consists of bytes: its number and the bytes. It ends
// where the text is no protocol buffer: the parser says what is wrong.
func parts(text []byte) func(yield func(field uint64, inside []byte) bool) {
	return func(yield func(uint64, []byte) bool) {
		for len(text) > 0 {
			tag, n := binary.Uvarint(text)
			if n <= 0 {
				return
			}
			text = text[n:]
			size := 0
			switch tag & 7 {
			case 0:
				_, size = binary.Uvarint(text)
			case 1:
				size = 8
			case 5:
				size = 4
			case 2:
				length, n := binary.Uvarint(text)
				if n <= 0 || length > uint64(len(text)-n) {
					return
				}
				text, size = text[n:], int(length)
				if !yield(tag>>3, text[:size]) {
					return
				}
			default:
				return
			}
			if size < 0 || size > len(text) || size == 0 && tag&7 == 0 {
				return
			}
			text = text[size:]
		}
	}
}

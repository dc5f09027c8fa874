// Package text writes names from outside so that they do no harm where they are
// printed, prints durations and large numbers, and aligns columns.
package text

import (
	"strconv"
	"unicode/utf8"
)

// Pad appends spaces until b[from:] has the width.
func Pad(b []byte, from, width int) []byte {
	for len(b) < from+width {
		b = append(b, ' ')
	}
	return b
}

// AppendPadded appends s and spaces up to the width.
func AppendPadded(b []byte, s string, width int) []byte { return Pad(append(b, s...), len(b), width) }

// Printable rewrites b[from:], a name from outside, as a Go string if it would break the line, steer a
// terminal, or is not UTF-8.
func Printable(b []byte, from int) []byte {
	for i := from; i < len(b); {
		if ' ' <= b[i] && b[i] <= '~' {
			i++
			continue
		}
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 || !strconv.IsPrint(r) {
			return strconv.AppendQuote(b[:from], string(b[from:]))
		}
		i += size
	}
	return b
}

// Line returns a name from outside as Printable writes it.
func Line(s string) string { return string(Printable([]byte(s), 0)) }

// UTF8 returns a text from outside as valid UTF-8, for formats that consist of it: a byte that is not part of
// a character becomes its escape, \xff.
func UTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	b := make([]byte, 0, len(s)+8)
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			b = append(b, `\x`...)
			b = append(b, hex[s[i]>>4], hex[s[i]&15])
		} else {
			b = append(b, s[i:i+size]...)
		}
		i += size
	}
	return string(b)
}

const hex = "0123456789abcdef"

// Grouped writes a whole number with commas between its thousands: 8,030,261,248.
func Grouped[T ~int | ~int64](n T) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

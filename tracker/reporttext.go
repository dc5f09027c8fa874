package tracker

import (
	"fmt"
	"path"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// stamp is the reference's way to write a moment, in reports and in their names.
const stamp = "02-Jan-06-15:04:05"

// appendHeader appends the report's first lines.
func appendHeader(b []byte, at time.Time, device string, levels Levels) []byte {
	b = append(b, "GPU Memory Track | "...)
	b = at.AppendFormat(b, stamp)
	b = append(b, " | "...)
	b = printable(append(b, device...), len(b))
	b = append(b, " | Total Tensor Used Memory:"...)
	b = appendMiB(b, levels.Live.Bytes)
	b = append(b, " Total Used Memory:"...)
	b = appendMiB(b, levels.DriverUsed)
	return append(b, "\n\n"...)
}

// appendMark appends one mark's block: what changed, then where Track was
// called and the totals there.
func appendMark(b []byte, m *Mark) []byte {
	if !m.Delta.IsZero() {
		b = appendDelta(append(b, '\n'), m.Delta)
	}
	b = append(b, '\n')
	from := len(b)
	b = append(b, "At "...)
	b = printable(append(b, path.Base(m.Site.File)...), len(b))
	b = fmt.Appendf(b, " line %d: ", m.Site.Line)
	b = printable(append(b, path.Base(m.Site.Function)...), len(b))
	b = pad(b, from, 49)
	b = append(b, " Total Tensor Used Memory:"...)
	b = appendMiB(b, m.Live.Bytes)
	b = append(b, " Total Allocated Memory:"...)
	b = appendMiB(b, m.Reserved+m.Registered)
	b = append(b, " Driver Used Memory:"...)
	b = appendMiB(b, m.DriverUsed)
	b = append(b, " Untracked:"...)
	b = appendMiB(b, m.Untracked())
	return append(b, '\n')
}

// appendDelta appends a line for each group that changed.
func appendDelta(b []byte, d Delta) []byte {
	for _, c := range d.changes {
		b = appendChange(b, c)
	}
	return b
}

func appendChange(b []byte, c Change) []byte {
	sign, count, bytes := "+ | ", c.Count, c.Bytes
	if count < 0 {
		sign, count, bytes = "- | ", -count, -bytes
	}
	b = append(b, sign...)
	b = strconv.AppendInt(b, count, 10)
	b = append(b, " * Size:"...)
	from := len(b)
	b = pad(c.Shape.Append(b), from, 20)
	b = append(b, " | Memory: "...)
	b = appendPadded(b, bytes.String(), 10)
	b = append(b, " | "...)
	b = appendPadded(b, c.Kind.String(), 14)
	b = append(b, " | "...)
	b = appendPadded(b, c.DType.String(), 8)
	b = append(b, " | "...)
	if len(c.Sites) == 0 {
		return append(b, "unknown\n"...)
	}
	b = printable(c.Sites[0].Frame.append(b), len(b))
	if others := len(c.Sites) - 1; others > 0 {
		b = append(b, " and "...)
		b = strconv.AppendInt(b, int64(others), 10)
		b = append(b, " more"...)
	}
	return append(b, '\n')
}

// appendMiB appends an amount as the reference's totals print it, in one unit so
// that they can be compared at a glance, unless it would read as nothing. A
// negative amount is unknown.
func appendMiB(b []byte, n alloc.Bytes) []byte {
	switch {
	case n < 0:
		return appendPadded(b, "unknown", 11)
	case 0 < n && n < alloc.MiB/20:
		return appendPadded(b, n.String(), 11)
	}
	from := len(b)
	b = strconv.AppendFloat(b, float64(n)/float64(alloc.MiB), 'f', 1, 64)
	return append(pad(b, from, 7), " MiB"...)
}

// appendPadded appends s and spaces up to the width.
func appendPadded(b []byte, s string, width int) []byte {
	return pad(append(b, s...), len(b), width)
}

// pad appends spaces until what stands from there on has the width.
func pad(b []byte, from, width int) []byte {
	for len(b) < from+width {
		b = append(b, ' ')
	}
	return b
}

// appendMissing says that marks are not there, and why.
func appendMissing(b []byte, marks int, why string) []byte {
	return fmt.Appendf(b, "\n%d marks are missing here: %s\n", marks, why)
}

// printable rewrites what stands in b from there on, a name from outside, as a Go string
// if it would break the line, steer a terminal, or is not UTF-8.
func printable(b []byte, from int) []byte {
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

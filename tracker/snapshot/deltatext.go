package snapshot

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// maxWidth is the width of a report's lines, in bytes. A line is longer only if a single name or
// shape is.
const maxWidth = 100

// String returns the table that a report shows, without a line break at its end. It is
// empty if nothing changed.
func (d Delta) String() string { return strings.TrimSuffix(string(d.Append(nil)), "\n") }

// Append appends the table that a report shows, with a line break at its end: a line of headings, then a line for each
// group that changed. A call site that does not fit in its line goes into the next one. It appends nothing if nothing changed.
func (d Delta) Append(b []byte) []byte {
	if len(d) == 0 {
		return b
	}
	w := d.widths(b)
	b = w.appendRow(b, ' ', headings)
	b = append(b, " | Allocated at\n"...)
	var site []byte
	for i := range d {
		c, from := &d[i], len(b)
		b = w.appendRow(b, c.sign(), c.cells)
		site = c.appendSite(site[:0])
		if len(b)-from+len(" | ")+len(site) <= maxWidth {
			b = append(b, " | "...)
		} else {
			b = append(bytes.TrimRight(b, " "), "\n    at "...)
		}
		b = append(append(b, site...), '\n')
	}
	return b
}

// String returns the change on one line, as in the table but without the spaces that align it: "+ |
// 8 * (512,) | 16.0 KiB | Parameter | float32 | main.go:82 main.load".
func (c Change) String() string {
	b := widths{}.appendRow(nil, c.sign(), c.cells)
	return string(c.appendSite(append(b, " | "...)))
}

// cells appends the text of a table's column to b.
type cells func(b []byte, column int) []byte

// widths are the widths of a table's columns, except the sign and the call site.
type widths [4]int

func headings(b []byte, column int) []byte {
	return append(b, [len(widths{})]string{"Count * Size", "Memory", "Kind", "Type"}[column]...)
}

// widths returns the widths that the table needs; an amount's is the widest that there is.
// What lies in b after its end is overwritten.
func (d Delta) widths(b []byte) widths {
	w := widths{1: len("1023.9 KiB")}
	for _, column := range []int{0, 2, 3} {
		w[column] = len(headings(b, column)) - len(b)
		for i := range d {
			w[column] = max(w[column], len(d[i].cells(b, column))-len(b))
		}
	}
	return w
}

// appendRow appends the sign and the cells, padded to their widths.
func (w widths) appendRow(b []byte, sign byte, row cells) []byte {
	b = append(b, sign)
	for column, width := range w {
		b = append(b, " | "...)
		from := len(b)
		b = text.Pad(row(b, column), from, width)
	}
	return b
}

func (c *Change) sign() byte {
	if c.Count < 0 {
		return '-'
	}
	return '+'
}

func (c *Change) cells(b []byte, column int) []byte {
	count, bytes := c.Count, c.Bytes
	if count < 0 {
		count, bytes = -count, -bytes
	}
	switch column {
	case 0:
		b = append(strconv.AppendInt(b, count, 10), " * "...)
		if c.DType == 0 {
			return append(b, "unknown"...)
		}
		return c.Shape.Append(b)
	case 1:
		return append(b, bytes.String()...)
	case 2:
		return append(b, c.Kind.String()...)
	}
	if c.DType == 0 {
		b = append(b, "unknown"...)
	} else {
		b = append(b, c.DType.String()...)
	}
	return appendMemory(b, c.Memory)
}

// appendGroup prints what buffers are on one line: "Parameter (512,) float32".
func appendGroup(b []byte, g *Group) []byte {
	b = append(append(b, g.Kind.String()...), ' ')
	if g.DType == 0 {
		b = append(b, "of unknown shape"...)
	} else {
		b = append(append(g.Shape.Append(b), ' '), g.DType.String()...)
	}
	return appendMemory(b, g.Memory)
}

// appendMemory appends the type of memory, unless it is plain device memory.
func appendMemory(b []byte, m alloc.Memory) []byte {
	if m == alloc.UnknownMemory || m == alloc.DeviceMemory {
		return b
	}
	b = append(append(b, ' '), m.String()...)
	if m.OnHost() {
		b = append(b, " host"...)
	}
	return b
}

// appendSite appends the line of code that is answerable for most of the change, and how
// many others there are.
func (c *Change) appendSite(b []byte) []byte {
	if len(c.CallSites) == 0 {
		return append(b, "unknown"...)
	}
	from, its := len(b), &c.CallSites[0].Frame
	b = text.Printable(callsite.AppendLine(b, its.Function, its.File, its.Line), from)
	if others := len(c.CallSites) - 1; others > 0 {
		b = append(b, " and "...)
		b = strconv.AppendInt(b, int64(others), 10)
		b = append(b, " more"...)
	}
	return b
}

package html

import (
	_ "embed"
	"strings"
	"unicode"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// detail says how many of the largest things a page shows.
type detail struct {
	groups   int // lines of the table; each moment shows some of them
	frames   int // frames of the flame graph
	marks    int // tables of marks, the latest
	changes  int // rows of a mark's table
	segments int // segments of each moment
	moments  int
	lines    int // lines of the other lists
	text     int // characters of a name
}

var full = detail{groups: 1000, frames: 2500, marks: 200, changes: 20, segments: maxSegments, moments: manyMoments, lines: 50, text: 160}

// half is less of all. Moments go first: where there are many, the next is near.
func (d detail) half() detail {
	if d.moments > fewMoments {
		d.moments /= 2
		return d
	}
	for _, n := range []*int{&d.groups, &d.frames, &d.marks, &d.changes, &d.segments, &d.lines} {
		*n = (*n + 1) / 2
	}
	d.text = max(40, d.text/2)
	return d
}

// writing turns facts into what a page of some detail shows.
type writing struct {
	detail
	names *lines.Names
}

// text makes a name that came from outside printable, and short.
func (w *writing) text(s string) string { return clip(s, w.detail.text) }

// long is for texts that are sentences.
func (w *writing) long(s string) string { return clip(s, 10*w.detail.text) }

// line names a line of code.
func (w *writing) line(f mem.Frame) string { return w.text(w.names.Of(f)) }

// clip replaces characters that cannot be printed, and shortens long text in the middle.
func clip(s string, most int) string {
	if len(s) > 8*most {
		s = s[:4*most] + s[len(s)-4*most:]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most/2]) + "…" + string(runes[len(runes)-most/2+1:])
	}
	return s
}

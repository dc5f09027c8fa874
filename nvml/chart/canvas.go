package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/color"
	"io"
	"strconv"
	"strings"
)

// canvas is a surface to draw a chart on. Positions are in pixels from the upper left corner.
type canvas interface {
	// line draws a line through points; there must be at least two.
	line([]point, stroke)
	// circle draws a ring, or a disc if the stroke has no width.
	circle(center point, radius float64, s stroke)
	// text writes a text, whose letters are centred vertically at the point.
	text(point, string, face)
}

type point struct{ x, y float64 }

type stroke struct {
	color  color.RGBA
	width  float64
	dashes []float64 // lengths of dashes and gaps in turn; nil draws a solid line
}

// face is how a text looks.
type face struct {
	size   float64
	bold   bool
	turned bool // it reads from below upwards
	align  align
}

// align is which part of a text lies at its point.
type align int

const (
	start align = iota
	middle
	end
)

// svg is a drawing whose text stays text.
type svg struct{ bytes.Buffer }

// svg writes the chart as a drawing.
func (f *figure) svg(w io.Writer) error {
	var c svg
	fmt.Fprintf(&c, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" font-family="%s">`+"\n",
		f.width, f.height, "Go, Liberation Sans, Arial, Helvetica, sans-serif")
	fmt.Fprintf(&c, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", f.width, f.height)
	f.draw(&c)
	c.WriteString("</svg>\n")
	_, err := c.WriteTo(w)
	return err
}

func (c *svg) line(points []point, s stroke) {
	c.WriteString(`<path d="`)
	for i, p := range points {
		c.WriteByte("ML"[min(i, 1)])
		c.WriteString(number(p.x) + "," + number(p.y))
	}
	c.WriteString(`" fill="none"` + s.svg() + "/>\n")
}

func (c *svg) circle(center point, radius float64, s stroke) {
	paint := ` fill="` + hex(s.color) + `"`
	if s.width > 0 {
		paint = ` fill="none"` + s.svg()
	}
	fmt.Fprintf(c, `<circle cx="%s" cy="%s" r="%s"%s/>`+"\n", number(center.x), number(center.y), number(radius), paint)
}

// text writes a text with its width in the Go font, to which a viewer without that font stretches
// its own.
func (c *svg) text(at point, s string, f face) {
	fmt.Fprintf(c, `<text x="%s" y="%s" dy="0.36em" font-size="%s" fill="%s" textLength="%s" lengthAdjust="spacingAndGlyphs"`,
		number(at.x), number(at.y), number(f.size), hex(textColor), number(f.width(s)))
	if f.align != start {
		fmt.Fprintf(c, ` text-anchor="%s"`, [...]string{middle: "middle", end: "end"}[f.align])
	}
	if f.bold {
		c.WriteString(` font-weight="bold"`)
	}
	if f.turned {
		fmt.Fprintf(c, ` transform="rotate(-90 %s %s)"`, number(at.x), number(at.y))
	}
	c.WriteByte('>')
	_ = xml.EscapeText(c, []byte(s)) // a buffer takes all
	c.WriteString("</text>\n")
}

func (s stroke) svg() string {
	out := ` stroke="` + hex(s.color) + `" stroke-width="` + number(s.width) + `"`
	if len(s.dashes) == 0 {
		return out
	}
	dashes := make([]string, len(s.dashes))
	for i, d := range s.dashes {
		dashes[i] = number(d)
	}
	return out + ` stroke-dasharray="` + strings.Join(dashes, " ") + `"`
}

func hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

// number prints a hundredth of a pixel, and no more digits than it needs.
func number(v float64) string {
	s := strconv.FormatFloat(v, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

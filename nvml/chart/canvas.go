package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// canvas is a surface to draw a chart on. Positions are in pixels from the upper left corner.
type canvas interface {
	// line draws a line through points; there must be at least two.
	line([]point, stroke)
	// circle draws a circle, or a disc if the stroke has no width.
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

// writeSVG writes the chart as a drawing.
func writeSVG(w io.Writer, f *figure) error {
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

// raster is a picture of pixels.
type raster struct {
	picture *image.RGBA
	area    vector.Rasterizer
}

// writePNG writes the chart as a picture.
func writePNG(w io.Writer, f *figure) error {
	c := &raster{picture: image.NewRGBA(image.Rect(0, 0, f.width, f.height))}
	draw.Draw(c.picture, c.picture.Bounds(), image.White, image.Point{}, draw.Src)
	f.draw(c)
	return png.Encode(w, c.picture)
}

// outline is a closed shape of curves. Where outlines overlap, the vector package fills the area once if they have one
// direction, and leaves it empty if two have opposite directions.
type outline []sfnt.Segment

// fill fills shapes that all turn the same way.
func (c *raster) fill(shapes []outline, fill color.RGBA) {
	box := bounds(shapes).Intersect(c.picture.Bounds())
	if box.Empty() {
		return
	}
	c.area.Reset(box.Dx(), box.Dy())
	at := func(p fixed.Point26_6) (x, y float32) {
		return float32(p.X)/64 - float32(box.Min.X), float32(p.Y)/64 - float32(box.Min.Y)
	}
	for _, shape := range shapes {
		for _, s := range shape {
			x, y := at(s.Args[0])
			switch s.Op {
			case sfnt.SegmentOpMoveTo:
				c.area.ClosePath()
				c.area.MoveTo(x, y)
			case sfnt.SegmentOpLineTo:
				c.area.LineTo(x, y)
			case sfnt.SegmentOpQuadTo:
				x1, y1 := at(s.Args[1])
				c.area.QuadTo(x, y, x1, y1)
			case sfnt.SegmentOpCubeTo:
				x1, y1 := at(s.Args[1])
				x2, y2 := at(s.Args[2])
				c.area.CubeTo(x, y, x1, y1, x2, y2)
			}
		}
		c.area.ClosePath()
	}
	c.area.Draw(c.picture, box, image.NewUniform(fill), image.Point{})
}

// bounds returns the pixels that shapes touch.
func bounds(shapes []outline) image.Rectangle {
	var b fixed.Rectangle26_6
	for i, s := range shapes {
		if i == 0 {
			b = sfnt.Segments(s).Bounds()
		} else {
			b = b.Union(sfnt.Segments(s).Bounds())
		}
	}
	return image.Rect(b.Min.X.Floor(), b.Min.Y.Floor(), b.Max.X.Ceil(), b.Max.Y.Ceil())
}

func at(p point) fixed.Point26_6 {
	return fixed.Point26_6{X: fixed.Int26_6(math.Round(p.x * 64)), Y: fixed.Int26_6(math.Round(p.y * 64))}
}

// polygon is the outline of a shape with straight sides.
func polygon(corners ...point) outline {
	o := make(outline, len(corners))
	for i, p := range corners {
		o[i] = sfnt.Segment{Op: sfnt.SegmentOpLineTo, Args: [3]fixed.Point26_6{at(p)}}
	}
	o[0].Op = sfnt.SegmentOpMoveTo
	return o
}

// disc turns as the parts of a line do.
func disc(center point, radius float64) outline {
	corners := make([]point, 8+4*int(radius))
	for i := range corners {
		sin, cos := math.Sincos(2 * math.Pi * float64(i) / float64(len(corners)))
		corners[i] = point{center.x + radius*cos, center.y + radius*sin}
	}
	return polygon(corners...)
}

// line draws each part of a line as a rectangle, with a disc in each corner of the line.
func (c *raster) line(points []point, s stroke) {
	var shapes []outline
	for _, dash := range dashed(points, s.dashes) {
		var x, y float64 // from the middle of the line to its edge
		for i, p := range dash[1:] {
			from := dash[i]
			length := math.Hypot(p.x-from.x, p.y-from.y)
			if length == 0 {
				continue
			}
			lastX, lastY := x, y
			x, y = (p.y-from.y)/length*s.width/2, (from.x-p.x)/length*s.width/2
			shapes = append(shapes, polygon(point{from.x + x, from.y + y}, point{p.x + x, p.y + y}, point{p.x - x, p.y - y}, point{from.x - x, from.y - y}))
			if i > 0 && math.Hypot(x-lastX, y-lastY) > 0.1 {
				shapes = append(shapes, disc(from, s.width/2))
			}
		}
	}
	c.fill(shapes, s.color)
}

// dashed cuts a line into its dashes.
func dashed(points []point, dashes []float64) (drawn [][]point) {
	if len(dashes) == 0 {
		return [][]point{points}
	}
	turn, left, dash := 0, dashes[0], []point{points[0]}
	end := func() {
		if turn%2 == 0 && len(dash) > 1 {
			drawn = append(drawn, dash)
		}
	}
	for i, p := range points[1:] {
		from := points[i]
		for {
			length := math.Hypot(p.x-from.x, p.y-from.y)
			if length <= left {
				left -= length
				break
			}
			from = point{from.x + (p.x-from.x)*left/length, from.y + (p.y-from.y)*left/length}
			dash = append(dash, from)
			end()
			turn, dash = turn+1, []point{from}
			left = dashes[turn%len(dashes)]
		}
		dash = append(dash, p)
	}
	end()
	return drawn
}

func (c *raster) circle(center point, radius float64, s stroke) {
	if s.width == 0 {
		c.fill([]outline{disc(center, radius)}, s.color)
		return
	}
	hole := disc(center, radius-s.width/2)
	slices.Reverse(hole)
	hole[0].Op, hole[len(hole)-1].Op = hole[len(hole)-1].Op, hole[0].Op
	c.fill([]outline{disc(center, radius+s.width/2), hole}, s.color)
}

func (c *raster) text(where point, s string, f face) {
	shape, width := f.outline(s)
	shift := [...]float64{start: 0, middle: -width / 2, end: -width}[f.align]
	for i := range shape {
		for k := range shape[i].Args {
			p := &shape[i].Args[k]
			x, y := float64(p.X)/64+shift, float64(p.Y)/64+0.36*f.size
			if f.turned {
				x, y = y, -x
			}
			*p = at(point{where.x + x, where.y + y})
		}
	}
	c.fill([]outline{shape}, textColor)
}

// Go Regular. Its licence is BSD, like Go's (https://go.dev/blog/go-fonts).
var regular = sync.OnceValues(func() (*sfnt.Font, error) { return sfnt.Parse(goregular.TTF) })

// outline returns the shape of a text that begins at the point (0, 0), on the baseline, and its width in pixels.
func (f face) outline(s string) (shape outline, width float64) {
	letters, err := regular()
	if err != nil {
		panic("chart: a font that Go brings cannot be read: " + err.Error())
	}
	var buf sfnt.Buffer
	var pen fixed.Int26_6
	size := fixed.Int26_6(math.Round(f.size * 64))
	for _, r := range s {
		index, _ := letters.GlyphIndex(&buf, r) // 0, a box, if the font lacks the letter
		glyph, err := letters.LoadGlyph(&buf, index, size, nil)
		if err != nil {
			continue
		}
		add := func() {
			for _, part := range glyph {
				for k := range part.Args {
					part.Args[k].X += pen
				}
				shape = append(shape, part)
			}
		}
		add()
		if f.bold { // twice, a little apart: a bold font would be another 150 KB of each program
			pen += size / 20
			add()
		}
		advance, _ := letters.GlyphAdvance(&buf, index, size, font.HintingNone)
		pen += advance
	}
	return shape, float64(pen) / 64
}

// width returns the width of a text in pixels.
func (f face) width(s string) float64 {
	_, width := f.outline(s)
	return width
}

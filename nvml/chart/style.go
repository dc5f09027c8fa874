package chart

import (
	"image/color"
	"math"
	"sort"
	"strconv"
)

// palette is the palette of Okabe and Ito, without its yellow and black. People with any colour
// vision can tell its colours apart (https://jfly.uni-koeln.de/color/).
var palette = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x8c, 0x56, 0x4b, 0xff}, {0x7f, 0x7f, 0x7f, 0xff},
}

var (
	textColor = color.RGBA{0x22, 0x22, 0x22, 0xff}
	ruleColor = color.RGBA{0x55, 0x55, 0x55, 0xff}
	gridColor = color.RGBA{0xe6, 0xe6, 0xe6, 0xff}
)

// dashes are the styles of lines, as lengths in points: together with the palette they give 32
// different lines.
var dashes = [][]float64{nil, {6, 3}, {1.5, 2.5}, {8, 2.5, 1.5, 2.5}}

const pixelsPerPoint = 96.0 / 72

// color returns the colour of the device's line. A process has a darker one, so that it can be seen
// on top of its device's line.
func (l line) color() color.RGBA {
	c := palette[l.Color%len(palette)]
	if l.Process {
		c.R, c.G, c.B = c.R/2, c.G/2, c.B/2
	}
	return c
}

// dashes are in points.
func (l line) dashes() []float64 { return dashes[l.Color/len(palette)%len(dashes)] }

// width is in points.
func (l line) width() float64 {
	if l.Process {
		return 0.75
	}
	return 1.5 + 1.5*float64(min(l.Under, 2))
}

func (l line) stroke() stroke {
	s := stroke{color: l.color(), width: l.width() * pixelsPerPoint}
	for _, d := range l.dashes() {
		s.dashes = append(s.dashes, d*pixelsPerPoint)
	}
	return s
}

// ticks marks an axis at multiples of 1, 2 or 5 times a power of ten, with a limit to the number of
// marks, and prints no more decimals than needed. The values are in a unit.
type ticks struct {
	most int
	unit float64
}

type tick struct {
	value float64
	label string
}

// roomFor returns how many ticks fit on an axis with the given pixels between them; at least 2.
func roomFor(length, apart float64) int { return max(2, int(length/apart)) }

func (t ticks) between(from, to float64) []tick {
	from, to = from/t.unit, to/t.unit
	step := niceStep((to - from) / float64(t.most))
	decimals := max(0, int(-math.Floor(math.Log10(step))))
	var marks []tick
	// Adding nothing makes a zero of a negative zero.
	for i := math.Ceil(from/step-1e-9) + 0; i*step <= to+step*1e-9; i++ {
		v := i * step
		marks = append(marks, tick{v * t.unit, strconv.FormatFloat(v, 'f', decimals, 64)})
	}
	return marks
}

func niceStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= least {
			return m * power
		}
	}
	return 10 * power
}

// key names a panel's lines, in as many columns as there is room for at the width of the
// widest entry. Columns are filled one after the other.
type key struct {
	face  face
	lines []line
	width float64 // width of a column
	rows  int
}

func newKey(lines []line, width float64) key {
	k := key{face: face{size: fontSize}, lines: lines}
	for _, l := range lines {
		k.width = max(k.width, k.face.width(l.Label)+keyLine+2*margin)
	}
	k.width = min(k.width, width)
	columns := int(width / k.width)
	k.rows = (len(lines) + columns - 1) / columns
	return k
}

func (k key) height() float64 { return rowHeight*float64(k.rows) + margin/2 }

func (k key) draw(c canvas, left, top float64) {
	for i, l := range k.lines {
		x := left + float64(i/k.rows)*k.width
		y := top + rowHeight*(float64(i%k.rows)+0.5)
		c.line([]point{{x, y}, {x + keyLine, y}}, l.stroke())
		label := k.face.fit(l.Label, k.width-keyLine-margin/2)
		c.text(point{x + keyLine + margin/2, y}, label, k.face)
	}
}

// fit cuts a text to a width in pixels.
func (f face) fit(s string, width float64) string {
	if f.width(s) <= width {
		return s
	}
	runes := []rune(s)
	n := sort.Search(len(runes), func(n int) bool { return f.width(string(runes[:n+1])+"…") > width })
	return string(runes[:n]) + "…"
}

package chart

import (
	"image/color"
	"math"
	"slices"
	"sort"
	"strconv"
)

// Sizes in pixels.
const (
	margin    = 10.0
	keyLine   = 30.0 // for an entry of the key
	fontSize  = 13.0
	rowHeight = 20.0
	tickSize  = 4.0
)

// draw draws the title, and each panel below its key, where the key can cover no line.
func (f *figure) draw(c canvas) {
	top, width := margin, float64(f.width)-2*margin
	if f.title != "" {
		face := face{size: 1.2 * fontSize, bold: true}
		c.text(point{margin, top + rowHeight/2}, face.fit(f.title, width), face)
		top += 1.3 * rowHeight
	}
	keys, height := make([]key, len(f.panels)), float64(f.height)-top-margin
	for i, p := range f.panels {
		keys[i] = newKey(p.Lines, width)
		height -= keys[i].height()
	}
	height = height/float64(len(keys)) - margin
	left := 0.0
	for _, p := range f.panels {
		left = max(left, p.labelWidth(height))
	}
	for i, p := range f.panels {
		keys[i].draw(c, margin, top)
		top += keys[i].height()
		a := axes{figure: f, panel: p, left: margin + left, right: margin + width - margin, top: top, bottom: top + height - 1.2*fontSize}
		if i == len(f.panels)-1 {
			a.bottom -= 1.3 * fontSize
			c.text(point{(a.left + a.right) / 2, top + height - 0.4*fontSize}, f.time.Title, face{size: fontSize, align: middle})
		}
		a.draw(c)
		top += height + margin
	}
}

// axes is the area of a panel, in pixels.
type axes struct {
	figure                   *figure
	panel                    panel
	left, right, top, bottom float64
}

func (a axes) x(seconds float64) float64 {
	return a.left + (a.right-a.left)*(seconds-a.figure.from)/(a.figure.to-a.figure.from)
}

func (a axes) y(v float64) float64 {
	return a.bottom - (a.bottom-a.top)*v/a.panel.axisMaximumAt(a.bottom-a.top)
}

// points returns where samples lie. A value that holds until the next is a step.
func (a axes) points(samples []sample, stepped bool) []point {
	out := make([]point, 0, 2*len(samples))
	for i, s := range samples {
		if stepped && i > 0 {
			out = append(out, point{a.x(s.x), out[len(out)-1].y})
		}
		out = append(out, point{a.x(s.x), a.y(s.y)})
	}
	return out
}

func (a axes) draw(c canvas) {
	a.drawScales(c)
	for _, l := range a.panel.Lines {
		a.drawLine(c, l)
	}
	for _, r := range a.panel.Rules {
		y := a.y(r.Y)
		c.line([]point{{a.left, y}, {a.right, y}}, stroke{color: ruleColor, width: 1, dashes: []float64{3, 3}})
		c.text(point{a.left + 4, y - 0.6*fontSize}, r.Label, face{size: 0.9 * fontSize})
	}
}

// drawScales draws the grid, and the axes over it.
func (a axes) drawScales(c canvas) {
	grid, axis := stroke{color: gridColor, width: 1}, stroke{color: ruleColor, width: 1}
	for _, t := range a.panel.ticks(a.bottom - a.top) {
		y := pixelAligned(a.y(t.value))
		c.line([]point{{a.left, y}, {a.right, y}}, grid)
		c.line([]point{{a.left - tickSize, y}, {a.left, y}}, axis)
		c.text(point{a.left - 2*tickSize, y}, t.label, face{size: fontSize, align: end})
	}
	for _, t := range (ticks{ticksThatFit(a.right-a.left, 6*fontSize), a.figure.time.Seconds}).between(a.figure.from, a.figure.to) {
		x := pixelAligned(a.x(t.value))
		c.line([]point{{x, a.top}, {x, a.bottom}}, grid)
		c.line([]point{{x, a.bottom}, {x, a.bottom + tickSize}}, axis)
		c.text(point{x, a.bottom + tickSize + 0.7*fontSize}, t.label, face{size: fontSize, align: middle})
	}
	left, bottom := pixelAligned(a.left), pixelAligned(a.bottom)
	c.line([]point{{left, a.top}, {left, bottom}, {a.right, bottom}}, axis)
	face := face{size: fontSize, align: middle, turned: true}
	title := a.panel.Name + " [" + a.panel.Unit + "]"
	if face.width(title) > a.bottom-a.top { // the key says the name too
		title = "[" + a.panel.Unit + "]"
	}
	c.text(point{margin + fontSize/2, (a.top + a.bottom) / 2}, title, face)
}

// drawLine draws a line, a dot for a sample that is alone between gaps, and a circle around the peak.
func (a axes) drawLine(c canvas, l line) {
	style := l.stroke()
	dots := l.dots
	for _, part := range l.parts {
		if len(part) == 1 {
			dots = append(slices.Clip(dots), part[0])
			continue
		}
		thinned := perColumn(part, a.figure.from, a.figure.to, a.figure.width/2) // a line is two pixels wide
		c.line(a.points(thinned, l.Stepped), style)
	}
	for _, p := range a.points(dots, false) {
		c.circle(p, 2, stroke{color: style.color})
	}
	if l.peak != nil {
		c.circle(a.points([]sample{*l.peak}, false)[0], 4.5, stroke{color: style.color, width: 1})
	}
}

// labelWidth is the width that the vertical axis takes: its title and the widest of its labels.
func (p panel) labelWidth(height float64) float64 {
	widest := 0.0
	for _, t := range p.ticks(height) {
		widest = max(widest, face{size: fontSize}.width(t.label))
	}
	return 1.5*fontSize + widest + 2*tickSize
}

// ticks are three lines of text apart. A low panel has closer ones, so that it has more than two.
func (p panel) ticks(height float64) []tick {
	most := max(ticksThatFit(height, 3*fontSize), min(5, ticksThatFit(height, 1.7*fontSize)))
	return ticks{most, 1}.between(0, p.axisMaximumAt(height))
}

// axisMaximumAt is the value at the top of a panel that has the height in pixels: it leaves space for the label above a rule.
func (p panel) axisMaximumAt(height float64) float64 {
	const label = 1.3 * fontSize
	if len(p.Rules) > 0 && height > 2*label {
		return max(axisMaximum(p.Max), p.Max/(1-label/height))
	}
	return axisMaximum(p.Max)
}

// pixelAligned moves a line that is a pixel wide onto pixels.
func pixelAligned(v float64) float64 { return math.Floor(v) + 0.5 }

// axisMaximum is a little more than the maximum, so that a peak is seen whole.
func axisMaximum(maximum float64) float64 {
	if maximum <= 0 {
		return 1
	}
	return maximum * 1.06
}

// perColumn reduces the samples in each column of pixels to the first, last, lowest and highest.
// More points cannot be seen and cost time.
func perColumn(part []sample, from, to float64, columns int) []sample {
	column := func(s sample) int { return int((s.x - from) / (to - from) * float64(columns)) }
	var kept []sample
	for len(part) > 0 {
		low, high, n := 0, 0, 1
		for ; n < len(part) && column(part[n]) == column(part[0]); n++ {
			if part[n].y < part[low].y {
				low = n
			}
			if part[n].y > part[high].y {
				high = n
			}
		}
		last := -1
		for _, i := range []int{0, min(low, high), max(low, high), n - 1} {
			if i > last {
				kept, last = append(kept, part[i]), i
			}
		}
		part = part[n:]
	}
	return kept
}

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

// ticksThatFit returns how many ticks fit on an axis with the given pixels between them; at least 2.
func ticksThatFit(length, apart float64) int { return max(2, int(length/apart)) }

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

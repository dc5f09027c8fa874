package chart

import (
	"image/color"
	"math"
	"sort"
	"strconv"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// palette is Okabe and Ito's, which people with any colour vision can tell
// apart (https://jfly.uni-koeln.de/color/), without its yellow and black.
var palette = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x8c, 0x56, 0x4b, 0xff}, {0x7f, 0x7f, 0x7f, 0xff},
}

var ruleColor = color.RGBA{0x55, 0x55, 0x55, 0xff}

var gridColor = color.RGBA{0xdd, 0xdd, 0xdd, 0xff}

const (
	dpi       = 96
	margin    = vg.Length(8)
	keyLine   = vg.Length(22) // of a key's entry
	fontSize  = vg.Length(10)
	rowHeight = 1.5 * fontSize
)

func pixels(n int) vg.Length { return vg.Length(n) * vg.Inch / dpi }

// dashes are the styles of lines: with the palette, 32 that differ.
var dashes = [][]vg.Length{nil, {6, 3}, {1.5, 2.5}, {8, 2.5, 1.5, 2.5}}

// color is that of the device; a process's is darker, so that it can be seen on its
// device's line.
func (l line) color() color.Color {
	c := palette[l.Color%len(palette)]
	if l.Process {
		c.R, c.G, c.B = c.R/2, c.G/2, c.B/2
	}
	return c
}

func (l line) style() draw.LineStyle {
	s := draw.LineStyle{Color: l.color(), Width: vg.Points(l.width()), Dashes: dashes[l.Color/len(palette)%len(dashes)]}
	return s
}

// width is in points.
func (l line) width() float64 {
	if l.Process {
		return 0.75
	}
	return 1.5 + 2*float64(min(l.Under, 4))
}

// ticks marks an axis at multiples of 1, 2 or 5 times a power of ten, at most
// so many of them, and prints no more decimals than they need. They count in a unit.
type ticks struct {
	most int
	unit float64
}

// roomFor returns how many ticks an axis has room for, at least so far from each other.
func roomFor(length, apart vg.Length) int { return max(2, int(length/apart)) }

// Ticks implements plot.Ticker.
func (t ticks) Ticks(from, to float64) []plot.Tick {
	from, to = from/t.unit, to/t.unit
	step := niceStep((to - from) / float64(t.most))
	decimals := max(0, int(-math.Floor(math.Log10(step))))
	var marks []plot.Tick
	// Adding nothing makes a zero of a negative zero.
	for i := math.Ceil(from/step-1e-9) + 0; i*step <= to+step*1e-9; i++ {
		v := i * step
		marks = append(marks, plot.Tick{Value: v * t.unit, Label: strconv.FormatFloat(v, 'f', decimals, 64)})
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

func textStyle() text.Style {
	style := plot.New().Legend.TextStyle
	style.Font.Size, style.Font.Variant = fontSize, "Sans"
	style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	return style
}

// drawTitle returns the canvas below the title.
func drawTitle(c draw.Canvas, title string) draw.Canvas {
	style := textStyle()
	style.Font.Size = 1.2 * fontSize
	style.Font.Weight = xfont.WeightBold
	c.FillText(style, vg.Point{X: c.Min.X, Y: c.Max.Y - rowHeight/2}, fit(style, title, c.Max.X-c.Min.X))
	return draw.Crop(c, 0, 0, 0, -1.3*rowHeight)
}

// key says what a panel's lines are: in as many columns as the widest entry
// leaves room for, one column after the other.
type key struct {
	style text.Style
	lines []line
	width vg.Length // of a column
	rows  int
}

func newKey(lines []line, width vg.Length) key {
	k := key{style: textStyle(), lines: lines}
	for _, l := range lines {
		k.width = max(k.width, k.style.Width(l.Label)+keyLine+2*margin)
	}
	k.width = min(k.width, width)
	columns := int(width / k.width)
	k.rows = (len(lines) + columns - 1) / columns
	return k
}

func (k key) height() vg.Length { return rowHeight*vg.Length(k.rows) + margin/2 }

func (k key) draw(c draw.Canvas) {
	for i, l := range k.lines {
		x := c.Min.X + vg.Length(i/k.rows)*k.width
		y := c.Max.Y - rowHeight*(vg.Length(i%k.rows)+0.5)
		c.StrokeLine2(l.style(), x, y, x+keyLine, y)
		label := fit(k.style, l.Label, k.width-keyLine-margin/2)
		c.FillText(k.style, vg.Point{X: x + keyLine + margin/2, Y: y}, label)
	}
}

// fit cuts a text to a width.
func fit(style text.Style, s string, width vg.Length) string {
	if style.Width(s) <= width {
		return s
	}
	runes := []rune(s)
	n := sort.Search(len(runes), func(n int) bool { return style.Width(string(runes[:n+1])+"…") > width })
	return string(runes[:n]) + "…"
}

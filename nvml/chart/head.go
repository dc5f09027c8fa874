package chart

import (
	"sort"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

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

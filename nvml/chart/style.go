package chart

import (
	"image/color"

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

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

var gridColor = color.RGBA{0xdd, 0xdd, 0xdd, 0xff}

const (
	dpi       = 96
	margin    = vg.Length(8)
	keyLine   = vg.Length(22) // of a key's entry
	fontSize  = vg.Length(10)
	rowHeight = 1.5 * fontSize
)

func pixels(n int) vg.Length { return vg.Length(n) * vg.Inch / dpi }

func (l line) style() draw.LineStyle {
	s := draw.LineStyle{Color: palette[l.Color%len(palette)], Width: vg.Points(1.5)}
	if l.Dashed {
		s.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
	}
	return s
}

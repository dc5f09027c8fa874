package chart

import (
	"image"
	"image/color"
	"image/draw"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// painted returns a picture of 20 by 8 pixels as text, a letter for how dark each pixel is.
func painted(paint func(canvas)) string {
	c := &raster{picture: image.NewRGBA(image.Rect(0, 0, 20, 8))}
	draw.Draw(c.picture, c.picture.Bounds(), image.White, image.Point{}, draw.Src)
	paint(c)
	var b strings.Builder
	for y := range 8 {
		for x := range 20 {
			b.WriteByte("#x. "[int(c.picture.RGBAAt(x, y).G)*4/256])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

var black = color.RGBA{A: 255}

func TestLinesOfPixels(t *testing.T) {
	got := painted(func(c canvas) {
		c.line([]point{{1, 2}, {10, 2}, {10, 6}, {-5, 6}}, stroke{color: black, width: 2})
		c.line([]point{{12, 1.5}, {16, 1.5}, {16, 1.5}, {30, 1.5}}, stroke{color: black, width: 1, dashes: []float64{2, 1}})
		c.line([]point{{13.5, 3}, {13.5, 30}}, stroke{color: black, width: 1, dashes: []float64{3, 1}})
	})
	assert.Equal(t, ""+
		"                    \n"+
		" ########## ## ## ##\n"+
		" ##########         \n"+
		"         ##  #      \n"+
		"         ##  #      \n"+
		"###########  #      \n"+
		"###########         \n"+
		"             #      \n", strings.ReplaceAll(got, "x", "#"))
}

func TestCirclesOfPixels(t *testing.T) {
	got := painted(func(c canvas) {
		c.circle(point{4, 4}, 3, stroke{color: black, width: 1.5})
		c.circle(point{14, 4}, 2, stroke{color: black})
	})
	rows := strings.Split(got, "\n")
	assert.Equal(t, byte(' '), rows[3][3], "a ring is empty: %s", got)
	assert.NotEqual(t, byte(' '), rows[1][4])
	assert.Equal(t, "##", rows[4][13:15])
	assert.Equal(t, strings.Repeat(" ", 8), rows[4][8:12]+rows[4][16:], got)
}

// TestTextOfPixels: a text lies where its face says, and a turned one reads upwards.
func TestTextOfPixels(t *testing.T) {
	boundsOf := func(f face, s string) image.Rectangle {
		c := &raster{picture: image.NewRGBA(image.Rect(0, 0, 200, 200))}
		c.text(point{100, 100}, s, f)
		var b image.Rectangle
		for y := range 200 {
			for x := range 200 {
				if c.picture.RGBAAt(x, y).A > 0 {
					b = b.Union(image.Rect(x, y, x+1, y+1))
				}
			}
		}
		return b
	}
	const s = "HHHHH"
	width := face{size: 20}.width(s)
	assert.InDelta(t, 70, width, 10)
	from := boundsOf(face{size: 20}, s)
	assert.InDelta(t, 100, from.Min.X, 3)
	assert.InDelta(t, 100+width, from.Max.X, 3)
	assert.InDelta(t, 100, float64(from.Min.Y+from.Max.Y)/2, 1, "letters have their middle at the point")
	assert.InDelta(t, 100, boundsOf(face{size: 20, align: end}, s).Max.X, 3)
	assert.InDelta(t, 100-width/2, boundsOf(face{size: 20, align: middle}, s).Min.X, 3)
	turned := boundsOf(face{size: 20, turned: true}, s)
	assert.InDelta(t, 100, turned.Max.Y, 3)
	assert.InDelta(t, 100-width, turned.Min.Y, 3)
	assert.Greater(t, face{size: 20, bold: true}.width("memory"), face{size: 20}.width("memory"))
}

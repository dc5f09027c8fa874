package chart

import (
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// png writes the chart as a picture.
func (f *Figure) png(w io.Writer) error {
	c := vgimg.NewWith(vgimg.UseWH(pixels(f.width), pixels(f.height)), vgimg.UseDPI(dpi))
	if err := f.draw(draw.New(c)); err != nil {
		return err
	}
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

// svg writes the chart as a drawing, its text as text.
func (f *Figure) svg(w io.Writer) error {
	c := vgsvg.New(pixels(f.width), pixels(f.height))
	if err := f.draw(draw.New(c)); err != nil {
		return err
	}
	_, err := c.WriteTo(w)
	return err
}

// draw puts the title, and each panel under its key, where it can cover no line.
func (f *Figure) draw(c draw.Canvas) error {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	c = draw.Crop(c, margin, -2*margin, margin, -margin)
	if f.title != "" {
		c = drawTitle(c, f.title)
	}
	keys := make([]key, len(f.panels))
	height := c.Max.Y - c.Min.Y - vg.Length(len(keys)-1)*margin
	for i, p := range f.panels {
		keys[i] = newKey(p.Lines, c.Max.X-c.Min.X)
		height -= keys[i].height()
	}
	height /= vg.Length(len(keys))
	plots := make([]*plot.Plot, len(f.panels))
	tiles := make([]draw.Canvas, len(f.panels))
	for i := range f.panels {
		p, err := f.plot(i, height)
		if err != nil {
			return err
		}
		keys[i].draw(c)
		c = draw.Crop(c, 0, 0, 0, -keys[i].height())
		plots[i], tiles[i] = p, draw.Crop(c, 0, 0, c.Max.Y-c.Min.Y-height, 0)
		c = draw.Crop(c, 0, 0, 0, -height-margin)
	}
	align(plots, tiles)
	for i, p := range plots {
		p.Draw(tiles[i])
	}
	return nil
}

// align moves the left sides of the plots' areas under each other.
func align(plots []*plot.Plot, tiles []draw.Canvas) {
	left := func(i int) vg.Length { return plots[i].DataCanvas(tiles[i]).Min.X }
	most := vg.Length(0)
	for i := range plots {
		most = max(most, left(i))
	}
	for i := range plots {
		tiles[i] = draw.Crop(tiles[i], most-left(i), 0, 0, 0)
	}
}

func (f *Figure) plot(i int, height vg.Length) (*plot.Plot, error) {
	p := plot.New()
	panel := f.panels[i]
	p.Y.Label.Text = panel.Name + " [" + panel.Unit + "]"
	if i == len(f.panels)-1 {
		p.X.Label.Text = "time [" + f.time.Name + "]"
	}
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		for _, f := range []*font.Font{&axis.Label.TextStyle.Font, &axis.Tick.Label.Font} {
			f.Size, f.Variant = fontSize, "Sans"
		}
		axis.Padding = 0
	}
	p.X.Tick.Marker = ticks{roomFor(pixels(f.width), 6*fontSize), f.time.Seconds}
	p.Y.Tick.Marker = ticks{roomFor(height, 3*fontSize), 1}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = gridColor, gridColor
	p.Add(grid)
	for _, l := range panel.Lines {
		parts := make([][]sample, len(l.parts))
		for i, part := range l.parts {
			parts[i] = perColumn(part, f.from, f.to, f.width/2) // a line is two pixels wide
		}
		l.parts = parts
		if err := addLine(p, l); err != nil {
			return nil, err
		}
	}
	if err := f.addRules(p, panel.Rules); err != nil {
		return nil, err
	}
	p.X.Min, p.X.Max = f.from, f.to // after the lines, which widen them
	p.Y.Min, p.Y.Max = 0, roof(panel.Max)
	return p, nil
}

// roof is a little more than the maximum, so that a peak is seen whole.
func roof(maximum float64) float64 {
	if maximum <= 0 {
		return 1
	}
	return maximum * 1.06
}

// perColumn reduces samples to what a column of a picture can show: the first and
// the last of them, and the lowest and the highest. Paths of many more points
// than columns take the rasterizer half a minute.
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

func addLine(p *plot.Plot, l line) error {
	for _, part := range l.parts {
		points := make(plotter.XYs, len(part))
		for i, s := range part {
			points[i] = plotter.XY{X: s.x, Y: s.y}
		}
		if len(points) == 1 { // alone between gaps: a dot
			if err := addDots(p, l, part); err != nil {
				return err
			}
			continue
		}
		drawn, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		drawn.LineStyle = l.style()
		if l.Stepped {
			drawn.StepStyle = plotter.PostStep
		}
		p.Add(drawn)
	}
	if l.peak != nil {
		if err := addPeak(p, l); err != nil {
			return err
		}
	}
	return addDots(p, l, l.dots)
}

func addDots(p *plot.Plot, l line, samples []sample) error {
	return addGlyphs(p, samples, draw.GlyphStyle{Color: l.color(), Radius: vg.Points(1.5), Shape: draw.CircleGlyph{}})
}

// addPeak draws a ring around the highest sample.
func addPeak(p *plot.Plot, l line) error {
	return addGlyphs(p, []sample{*l.peak}, draw.GlyphStyle{Color: l.color(), Radius: vg.Points(3.5), Shape: draw.RingGlyph{}})
}

func addGlyphs(p *plot.Plot, samples []sample, style draw.GlyphStyle) error {
	if len(samples) == 0 {
		return nil
	}
	points := make(plotter.XYs, len(samples))
	for i, s := range samples {
		points[i] = plotter.XY{X: s.x, Y: s.y}
	}
	drawn, err := plotter.NewScatter(points)
	if err != nil {
		return err
	}
	drawn.GlyphStyle = style
	p.Add(drawn)
	return nil
}

// addRules draws levels across the panel, each with its name above it.
func (f *Figure) addRules(p *plot.Plot, rules []rule) error {
	for _, r := range rules {
		drawn, err := plotter.NewLine(plotter.XYs{{X: f.from, Y: r.Y}, {X: f.to, Y: r.Y}})
		if err != nil {
			return err
		}
		drawn.LineStyle = draw.LineStyle{Color: ruleColor, Width: vg.Points(0.75), Dashes: []vg.Length{2, 2}}
		labels, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: f.from, Y: r.Y}}, Labels: []string{r.Label}})
		if err != nil {
			return err
		}
		labels.TextStyle[0].Font.Size, labels.TextStyle[0].Font.Variant = 0.9*fontSize, "Sans"
		labels.Offset = vg.Point{X: 3, Y: 2}
		p.Add(drawn, labels)
	}
	return nil
}

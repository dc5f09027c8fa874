package chart

import (
	_ "embed"
	"fmt"
	"io"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/uplot"
	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

var (
	//go:embed page.css
	pageCSS webpage.Markup
	//go:embed page.js
	pageJS webpage.Markup
)

// html writes the chart as a page. It follows the reader's choice of light or dark.
func (f *figure) html(w io.Writer) error {
	var p webpage.Page
	p.Put(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%v</title>
<style>
`, f.pageTitle())
	p.Put(webpage.Markup(uplot.CSS + "\n"))
	p.Put(pageCSS)
	p.Put(`</style>
</head>
<body>
<h1>%v</h1>
<p>Drag over a chart to zoom in, double click to see all of it.</p>
<div id="charts"></div>
<div class="wide">
<table class="stats">
<thead><tr><th>series</th><th>minimum</th><th>maximum</th><th>mean</th><th>duration</th><th>samples</th><th>rate</th><th>gaps</th></tr></thead>
<tbody>`, f.pageTitle())
	for _, s := range f.series {
		pageRow(&p, s)
	}
	p.Put(`
</tbody>
</table>
</div>
<script type="application/json" id="data">`)
	p.JSON(map[string]any{"panels": f.pagePanels(), "width": f.width, "height": f.height, "from": f.from, "time": f.time})
	p.Put("</script>\n<script>\n/*\nuPlot " + uplot.Version + "\n")
	p.Put(webpage.Markup(uplot.Licence))
	p.Put("\n*/\n")
	p.Put(webpage.Markup(uplot.JS))
	p.Put("\n</script>\n<script>\n")
	p.Put(pageJS)
	p.Put("</script>\n</body>\n</html>\n")
	_, err := p.WriteTo(w)
	return err
}

// pageRow writes what the table says of a series.
func pageRow(p *webpage.Page, s nvml.Series) {
	p.Put("\n<tr><td>%v", s.Label())
	if s.Note != "" {
		p.Put(`<div class="note">%v</div>`, s.Note)
	}
	p.Put("</td><td>%v</td><td>%v</td><td>%v</td><td>%v</td><td>%v</td><td>%v</td><td>%v</td></tr>",
		s.Quantity.Format(s.Min()), s.Quantity.Format(s.Max()), s.Quantity.Format(s.Mean()),
		fmt.Sprintf("%.1f s", s.Duration().Seconds()), s.Len(), rateOf(s), s.Gaps())
}

type pagePanel struct {
	Name  string     `json:"name"`
	Unit  string     `json:"unit"`
	Max   float64    `json:"max"`
	Lines []pageLine `json:"lines"`
	Rules []rule     `json:"rules"`
}

// pageLine holds a line's points by columns; a null is a gap.
type pageLine struct {
	Label  string     `json:"label"`
	Color  int        `json:"color"`
	Width  float64    `json:"width"`
	Dashes []float64  `json:"dashes"`
	Shade  bool       `json:"shade"` // a process's color is nearer to the text's than its device's
	Steps  bool       `json:"steps"`
	Dots   []float64  `json:"dots"` // the times of a process's samples
	Peak   *pagePoint `json:"peak"`
	X      []float64  `json:"x"`
	Y      []*float64 `json:"y"`
}

type pagePoint struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

func (f *figure) pageTitle() string {
	if f.title == "" {
		return "GPU memory"
	}
	return f.title
}

func (f *figure) pagePanels() []pagePanel {
	panels := make([]pagePanel, len(f.panels))
	for i, p := range f.panels {
		panels[i].Name, panels[i].Unit, panels[i].Max, panels[i].Rules = p.Name, p.Unit, roof(p.Max), append([]rule{}, p.Rules...)
		for _, l := range p.Lines {
			panels[i].Lines = append(panels[i].Lines, pageLineOf(l))
		}
	}
	return panels
}

// pageLineOf puts a null between parts. A point with a minimum and a maximum is
// two at one time; the second moves by a microsecond, since times must rise.
func pageLineOf(l line) pageLine {
	out := pageLine{Label: l.Name, Color: l.Color % len(palette), Width: l.width(), Dashes: append([]float64{}, l.dashes()...), Shade: l.Process, Steps: l.Stepped, Dots: []float64{}}
	if l.peak != nil {
		out.Peak = &pagePoint{l.peak.x, l.peak.y}
	}
	for _, d := range l.dots {
		out.Dots = append(out.Dots, d.x)
	}
	for i, part := range l.parts {
		if i > 0 {
			out.X = append(out.X, (out.X[len(out.X)-1]+part[0].x)/2)
			out.Y = append(out.Y, nil)
		}
		for _, s := range part {
			x := s.x
			if n := len(out.X); n > 0 && x <= out.X[n-1] {
				x = out.X[n-1] + time.Microsecond.Seconds()
			}
			out.X = append(out.X, x)
			out.Y = append(out.Y, &s.y)
		}
	}
	return out
}

// rateOf is a dash where there is too little for a rate.
func rateOf(s nvml.Series) string {
	if s.Len() < 3 || s.Duration() < 100*time.Millisecond {
		return "–"
	}
	return fmt.Sprintf("%.1f Hz", samplingRate(s))
}

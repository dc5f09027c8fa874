package chart

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS template.CSS
	//go:embed page.js
	pageJS template.JS

	pageTemplate = webpage.Template{Text: pageHTML}
)

// page is what page.html shows.
type page struct {
	webpage.Page
	Rows []pageRow
	Data pageData
}

// pageRow is what the table says of a series.
type pageRow struct {
	Label, Note              string
	Min, Max, Mean, Duration string
	Samples                  int
	Rate                     string
	Gaps                     int
}

// pageData is the JSON that page.js reads.
type pageData struct {
	Panels []pagePanel `json:"panels"`
	Width  int         `json:"width"` // pixels, as Height
	Height int         `json:"height"`
	From   float64     `json:"from"` // seconds
	Time   timeUnit    `json:"time"`
}

// writeHTML writes the chart as a page. It follows the reader's choice of light or dark.
func writeHTML(w io.Writer, f *figure) error {
	p := page{
		Page: webpage.Page{Title: cmp.Or(f.title, "GPU memory"), Style: pageCSS, Script: pageJS},
		Data: pageData{pagePanels(f), f.width, f.height, f.from, f.time},
	}
	for _, s := range f.series {
		p.Rows = append(p.Rows, pageRow{
			s.Label(), s.Note, s.Quantity.Format(s.Min()), s.Quantity.Format(s.Max()), s.Quantity.Format(s.Mean()),
			durationOf(s, f.numbered), s.Len(), rateOf(s, f.numbered), s.Gaps(),
		})
	}
	var text bytes.Buffer
	if err := pageTemplate.Execute(&text, p); err != nil {
		return err
	}
	_, err := text.WriteTo(w)
	return err
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

func pagePanels(f *figure) []pagePanel {
	panels := make([]pagePanel, len(f.panels))
	for i, p := range f.panels {
		panels[i].Name, panels[i].Unit, panels[i].Max, panels[i].Rules = p.Name, p.Unit, axisMaximum(p.Max), append([]rule{}, p.Rules...)
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

func durationOf(s nvml.Series, numbered bool) string {
	if numbered {
		return "–"
	}
	return fmt.Sprintf("%.1f s", s.Duration().Seconds())
}

// rateOf is a dash where there is too little for a rate.
func rateOf(s nvml.Series, numbered bool) string {
	if numbered || s.Len() < 3 || s.Duration() < 100*time.Millisecond {
		return "–"
	}
	return fmt.Sprintf("%.1f Hz", samplingRate(s))
}

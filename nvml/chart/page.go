package chart

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/uplot"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("chart").Parse(pageHTML))

// html writes the chart as a page. It follows the reader's choice of light or dark.
func (f *Figure) html(w io.Writer) error {
	return pageTemplate.Execute(w, page{
		Title:   f.pageTitle(),
		CSS:     template.CSS(uplot.CSS),
		JS:      template.JS(uplot.JS),
		Licence: template.JS("/*\nuPlot " + uplot.Version + "\n" + uplot.Licence + "\n*/"),
		Width:   f.width,
		Height:  f.height,
		From:    f.from,
		Time:    f.time,
		Panels:  f.pagePanels(),
		Rows:    f.pageRows(),
	})
}

// page is what the template is filled with.
type page struct {
	Title         string
	CSS           template.CSS
	JS, Licence   template.JS
	Width, Height int
	From          float64
	Time          timeUnit
	Panels        []pagePanel
	Rows          []pageRow
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

type pageRow struct {
	Series, Min, Max, Mean, Duration, Rate string
	Samples, Gaps                          int
	Note                                   string
}

func (f *Figure) pageTitle() string {
	if f.title == "" {
		return "GPU memory"
	}
	return f.title
}

func (f *Figure) pagePanels() []pagePanel {
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
	return fmt.Sprintf("%.1f Hz", s.SamplingRate())
}

func (f *Figure) pageRows() []pageRow {
	rows := make([]pageRow, len(f.series))
	for i, s := range f.series {
		rows[i] = pageRow{
			Series: s.Label(), Min: s.Quantity.Format(s.Min()), Max: s.Quantity.Format(s.Max()), Mean: s.Quantity.Format(s.Mean()),
			Duration: fmt.Sprintf("%.1f s", s.Duration().Seconds()), Rate: rateOf(s),
			Samples: s.Len(), Gaps: s.Gaps(), Note: s.Note,
		}
	}
	return rows
}

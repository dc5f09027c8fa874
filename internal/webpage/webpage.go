// Package webpage holds the style and the few functions that this module's HTML
// pages share. They go into a page as they are, so that it needs no network.
package webpage

import (
	_ "embed"
	"html/template"

	"github.com/gpumemtrack/gpumemtrack/internal/uplot"
)

var (
	//go:embed style.css
	style string
	//go:embed common.js
	common string
)

// Parts are what a page's template puts into its head and before its own script.
type Parts struct {
	CSS     template.CSS  // of the chart and of the page
	JS      template.JS   // uPlot, then size, colour and memoryChart
	Licence template.HTML // of the chart's code, as an HTML comment
}

// Get returns the parts.
func Get() Parts {
	return Parts{
		CSS:     template.CSS(uplot.CSS + style),
		JS:      template.JS(uplot.JS + common),
		Licence: template.HTML("<!-- uPlot " + uplot.Version + "\n" + template.HTMLEscapeString(uplot.Licence) + " -->"),
	}
}

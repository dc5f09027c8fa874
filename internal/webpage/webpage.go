// Package webpage holds the style and the few functions that this module's HTML
// pages share. They go into a page as they are, so that it needs no network.
package webpage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/uplot"
)

var (
	//go:embed style.css
	style string
	//go:embed common.js
	common string
	// Icon is the pages' icon, an SVG image.
	//go:embed icon.svg
	Icon string
)

// Parts are what a page's template puts into its head and before its own script.
type Parts struct {
	CSS     template.CSS  // of the chart and of the page
	JS      template.JS   // uPlot, then size, colour and the charts
	Icon    template.URL  // of the page
	Licence template.HTML // of the chart's code, as an HTML comment
}

// Get returns the parts.
func Get() Parts {
	return Parts{
		CSS:     template.CSS(uplot.CSS + style),
		JS:      template.JS(uplot.JS + common),
		Icon:    template.URL("data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString([]byte(Icon))),
		Licence: template.HTML("<!-- uPlot " + uplot.Version + "\n" + template.HTMLEscapeString(uplot.Licence) + " -->"),
	}
}

// Policy returns the Content-Security-Policy of a page with the parts and one
// script of its own, which may ask its own server for more and nobody else.
func Policy(script string) string {
	var b strings.Builder
	b.WriteString("default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; script-src")
	for _, text := range []string{uplot.JS + common, script} {
		sum := sha256.Sum256([]byte(text))
		b.WriteString(" 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'")
	}
	return b.String()
}

// kindColours are those of common.js.
var kindColours = map[string]template.CSS{
	"Parameter": "var(--parameter)", "Gradient": "var(--gradient)", "OptimizerState": "var(--optimizer)",
	"Activation": "var(--activation)", "Input": "var(--input)", "Temporary": "var(--temporary)", "Tensor": "var(--tensor)",
}

// KindColour returns the colour of a kind, as common.js does.
func KindColour(kind string) template.CSS {
	if colour, ok := kindColours[kind]; ok {
		return colour
	}
	hash := uint32(0)
	for _, r := range kind {
		hash = hash*31 + uint32(r)
	}
	return template.CSS(fmt.Sprintf("var(--own-%d)", hash%6))
}

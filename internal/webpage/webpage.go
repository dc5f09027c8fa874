// Package webpage holds the style, the script and the templates that this module's HTML pages share. A page contains all of
// them, so that it needs no network.
//
// Pages are templates of html/template, which escapes each value for the place where it stands. Only constants and embedded
// files of this module have the types that it does not escape (template.HTML, template.JS and so on): a test checks that.
package webpage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"html/template"
	"strings"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/internal/uplot"
)

var (
	//go:embed layout.html
	layout string
	//go:embed style.css
	style string
	//go:embed common.js
	common string
	// Icon is the pages' icon, an SVG image.
	//go:embed icon.svg
	Icon string
)

// Page is what the templates "head" and "scripts" need. The data of a page embeds it.
type Page struct {
	Title  string
	Policy string       // the Content-Security-Policy; "" if a server sends it
	Style  template.CSS // of this page, after the common style
	Script template.JS  // of this page, after the common script
}

// Template returns a function that parses a page's template at its first call. The page can use the templates "head" and
// "scripts", which take a Page, the function json, which is JSON, and those that layout.html uses. A text that is not a
// template panics.
func Template(name, text string) func() *template.Template {
	return sync.OnceValue(func() *template.Template {
		t := template.New(name).Funcs(template.FuncMap{
			"icon": func() template.URL {
				return template.URL("data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString([]byte(Icon)))
			},
			"chartLicence": func() template.HTML {
				return template.HTML("<!-- uPlot " + uplot.Version + "\n" + uplot.Licence + " -->")
			},
			"chartStyle":   func() template.CSS { return template.CSS(uplot.CSS) },
			"chartScript":  func() template.JS { return template.JS(uplot.JS) },
			"commonStyle":  func() template.CSS { return template.CSS(style) },
			"commonScript": func() template.JS { return template.JS(common) },
			"json":         JSON,
		})
		template.Must(t.New("layout").Parse(layout))
		return template.Must(t.Parse(text))
	})
}

// JSON returns a value for a script element: json.Marshal leaves no "<", ">" or "&" in it, so no text in it can end the element.
// Unlike html/template's own encoding, a value that has no JSON is an error.
func JSON(v any) (template.JS, error) {
	text, err := json.Marshal(v)
	return template.JS(text), err
}

// Policy returns the Content-Security-Policy of a page with the common script and one of its own. The page may ask the server
// that it came from for more, and no other.
func Policy(script template.JS) string {
	var b strings.Builder
	b.WriteString("default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; script-src")
	for _, text := range []string{uplot.JS + common, string(script)} {
		sum := sha256.Sum256([]byte(text))
		b.WriteString(" 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'")
	}
	return b.String()
}

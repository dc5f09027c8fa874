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
	"io"
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

// Template is the template of a page, which is parsed when it is first executed. It can use the templates "head" and "scripts",
// which take a Page, the function json, which encodes a value for a script element, and the functions that layout.html uses.
type Template struct {
	Text string // of an embedded file

	once   sync.Once
	parsed *template.Template
}

// Execute writes a page. A Text that is not a template panics; a value that has no JSON is an error, as are those of w.
func (t *Template) Execute(w io.Writer, data any) error {
	t.once.Do(func() {
		page := template.New("page").Funcs(functions())
		template.Must(page.New("layout").Parse(layout))
		t.parsed = template.Must(page.Parse(t.Text))
	})
	return t.parsed.Execute(w, data)
}

func functions() template.FuncMap {
	return template.FuncMap{
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
		"json":         encoded,
	}
}

// encoded returns a value for a script element: json.Marshal leaves no "<", ">" or "&" in it, so no text in it can end the
// element. Unlike in html/template's own encoding, a value that has no JSON is an error.
func encoded(v any) (template.JS, error) {
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

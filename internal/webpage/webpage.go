// Package webpage holds the style and the few functions that this module's HTML
// pages share, and writes HTML in which names from outside can do no harm. All goes
// into a page as it is, so that the page needs no network.
//
// It does without html/template: where that is linked, a program keeps every
// exported method that it has, and is larger by a seventh.
package webpage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
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

// Head begins a page, up to the end of its head: the style and the licence of the charts, the style of all pages, and one of
// the page's own. A page that no server sends has its Content-Security-Policy, as Policy returns it, in itself.
func (p *Page) Head(title, policy string, own Markup) {
	p.Put(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%v</title>
`, title)
	if policy != "" {
		p.Put(`<meta http-equiv="Content-Security-Policy" content="%v">`+"\n", policy)
	}
	p.Put(`<link rel="icon" href="data:image/svg+xml;base64,%v">`+"\n", base64.StdEncoding.EncodeToString([]byte(Icon)))
	p.Put(Markup("<!-- uPlot " + uplot.Version + "\n" + uplot.Licence + " -->\n"))
	p.Put("<style>")
	p.Put(Markup(uplot.CSS + style))
	p.Put(own)
	p.Put("</style>\n</head>\n")
}

// Scripts ends a page: uPlot with size, colour and the charts, and a script of the page's own.
func (p *Page) Scripts(own Markup) {
	p.Put("<script>")
	p.Put(Markup(uplot.JS + common))
	p.Put("</script>\n<script>")
	p.Put(own)
	p.Put("</script>\n</body>\n</html>\n")
}

// Policy returns the Content-Security-Policy of a page with the shared script and one
// of its own. The page may ask the server that it came from for more, and no other.
func Policy(script string) string {
	var b strings.Builder
	b.WriteString("default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; script-src")
	for _, text := range []string{uplot.JS + common, script} {
		sum := sha256.Sum256([]byte(text))
		b.WriteString(" 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'")
	}
	return b.String()
}

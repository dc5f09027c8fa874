package viewer

import (
	_ "embed"
	"html/template"
	"net/http"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS template.CSS
	//go:embed page.js
	pageJS template.JS

	pageTemplate = webpage.Template{Text: pageHTML}
	pagePolicy   = sync.OnceValue(func() string { return webpage.Policy(pageJS) })
)

// servePage serves the page at "/", for a request that has the token.
func servePage(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Security-Policy", pagePolicy()+"; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = pageTemplate.Execute(w, webpage.Page{Title: "GPU memory", Style: pageCSS, Script: pageJS})
}

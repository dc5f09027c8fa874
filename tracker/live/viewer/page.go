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
)

// The parts of the page's script.
var (
	//go:embed page/text.js
	textJS template.JS
	//go:embed page/scales.js
	scalesJS template.JS
	//go:embed page/state.js
	stateJS template.JS
	//go:embed page/server.js
	serverJS template.JS
	//go:embed page/colours.js
	coloursJS template.JS
	//go:embed page/tiles.js
	tilesJS template.JS
	//go:embed page/levels.js
	levelsJS template.JS
	//go:embed page/timeline.js
	timelineJS template.JS
	//go:embed page/gestures.js
	gesturesJS template.JS
	//go:embed page/overview.js
	overviewJS template.JS
	//go:embed page/ranks.js
	ranksJS template.JS
	//go:embed page/details.js
	detailsJS template.JS
	//go:embed page/segments.js
	segmentsJS template.JS
	//go:embed page/flame.js
	flameJS template.JS
	//go:embed page/table.js
	tableJS template.JS
	//go:embed page/filter.js
	filterJS template.JS
	//go:embed page/summary.js
	summaryJS template.JS
	//go:embed page/app.js
	appJS template.JS
)

var (
	pageTemplate = webpage.Template{Text: pageHTML}
	// pageScript is the parts in one scope, those first that the others use while they are read.
	pageScript = sync.OnceValue(func() template.JS {
		return "\"use strict\";\n(() => {\n" + textJS + scalesJS + stateJS + serverJS + coloursJS + tilesJS + levelsJS + timelineJS + gesturesJS +
			overviewJS + ranksJS + detailsJS + segmentsJS + flameJS + tableJS + filterJS + summaryJS + appJS + "})();\n"
	})
	// pagePolicy is the page's Content-Security-Policy: its own scripts, and requests to the server that it came from.
	pagePolicy = sync.OnceValue(func() string { return webpage.Policy(pageScript()) + "; frame-ancestors 'none'" })
)

// servePage serves the page at "/", for a request that has the token.
func servePage(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Security-Policy", pagePolicy())
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = pageTemplate.Execute(w, webpage.Page{Title: "GPU memory", Style: pageCSS, Script: pageScript()}) // the client has gone
}

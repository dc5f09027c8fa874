// Package uplot holds uPlot 1.6.32, a small JavaScript library that draws time
// series, for the HTML pages that this module writes. Its code and its style
// go into a page as they are, so that the page needs no network.
//
// uPlot is by Leon Sorokin, under the MIT licence; the licence asks that its
// text goes wherever the code goes, so a page holds it too. See
// https://github.com/leeoniya/uPlot.
package uplot

import _ "embed"

// Version is the release that is embedded.
const Version = "1.6.32"

// JS is the library, minified. It defines the global uPlot.
//
//go:embed uPlot.iife.min.js
var JS string

// CSS is the style sheet that a page with a uPlot chart needs.
//
//go:embed uPlot.min.css
var CSS string

// Licence is the text of uPlot's licence.
//
//go:embed LICENSE
var Licence string

// Package chart draws the recordings of package nvml as a picture (PNG, SVG) or as a page for
// the browser, also while the recording goes on:
//
//	fig, err := chart.New(rec.Recording().Series, chart.Config{Last: 50})
//	err = fig.Save("memory.png", false)
//
// It is a separate package, so that a program that only queries or records compiles no plotting
// library.
package chart

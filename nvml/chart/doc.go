// Package chart draws what package nvml records, as a picture (PNG, SVG) or as a
// page for the browser, at any time, while recording too:
//
//	fig, err := chart.New(rec.Recording().Series, chart.Config{Last: 50})
//	err = fig.Save("memory.png", false)
//
// It is apart from nvml so that a program that only asks or records compiles no
// plotting library.
package chart

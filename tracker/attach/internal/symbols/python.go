package symbols

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Python is the Python functions that a thread runs.
type Python struct {
	Image string        // the path of the interpreter's file
	Runs  [][]mem.Frame // innermost first: the functions of each run of the interpreter's loop
	Rest  string        // the frame for further loops, if there are more than Runs
}

// loop reports whether code is the loop of the interpreter.
func (c code) loop() bool {
	return c.ofPython && strings.HasPrefix(c.native.Function, "_PyEval_EvalFrameDefault")
}

// replace replaces the interpreter's frames by Python functions: each loop by its run. If loops have no
// name, since the interpreter has no symbols, each sequence of its frames gets one run, and the last the
// remaining ones. Without such frames, the functions are returned as the rest.
func (p *Python) replace(all []code) (rest []mem.Frame) {
	loops, stretches := 0, 0
	for i, c := range all {
		if c.loop() {
			loops++
		}
		if begins(all, i) {
			stretches++
		}
	}
	runs, named := p.Runs, loops >= len(p.Runs)
	take := func(n int) (frames []mem.Frame) {
		frames, runs = slices.Concat(runs[:n]...), runs[n:]
		return frames
	}
	for i, c := range all {
		if !c.ofPython {
			continue
		}
		all[i].frames = nil
		switch {
		case named && c.loop() && len(runs) > 0:
			all[i].frames = take(1)
		case named && c.loop() && loops > len(p.Runs) && p.Rest != "":
			all[i].frames, loops = []mem.Frame{{Function: p.Rest}}, 0
		case !named && begins(all, i):
			n := min(1, len(runs))
			if stretches--; stretches == 0 {
				n = len(runs)
			}
			all[i].frames = take(n)
		}
	}
	return take(len(runs))
}

// begins reports whether a sequence of the interpreter's frames begins at an index.
func begins(all []code, i int) bool { return all[i].ofPython && (i == 0 || !all[i-1].ofPython) }

package symbols

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Python is what a thread runs of Python.
type Python struct {
	Image string        // the path of the interpreter's file
	Runs  [][]mem.Frame // innermost first: a run of the interpreter's loop each
	Rest  string        // what stands for the loops that are further out, if there are more than runs
}

// loop reports whether code is the interpreter's loop.
func (c code) loop() bool {
	return c.its && strings.HasPrefix(c.native.Function, "_PyEval_EvalFrameDefault")
}

// replace puts the functions of Python in the place of the interpreter's frames: a run for each loop. If not all loops have a name,
// since the interpreter has no symbols, it puts them where its frames begin, each time, and those that are left there where they
// begin last. If it has no frame at all, the functions are the rest.
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
		if !c.its {
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

// begins reports whether the interpreter's frames begin at a place.
func begins(all []code, i int) bool { return all[i].its && (i == 0 || !all[i-1].its) }

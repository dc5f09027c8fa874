package symbols

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestPythonStandsForItsInterpreter: L is the interpreter's loop, i another of its functions or a loop without a name, c and d are others'.
func TestPythonStandsForItsInterpreter(t *testing.T) {
	frames := func(names string) (all []mem.Frame) {
		for name := range strings.FieldsSeq(names) {
			all = append(all, mem.Frame{Function: name})
		}
		return all
	}
	for _, test := range []struct{ calls, runs, rest, want, left string }{
		{"c L i L i d", "f g|h", "more", "c f g h d", ""},
		{"c L i d L i", "f|g", "", "c f d g", ""},
		{"c L i d L i", "f", "more", "c f d more", ""},
		{"L d L d L", "f", "more", "f d more d", ""},
		{"L d L", "f", "", "f d", ""},
		{"L L L", "f||g", "more", "f g", ""},
		{"c i i d i", "f|g", "more", "c f d g", ""},
		{"c i i d i c", "f|g|h", "", "c f d g h c", ""},
		{"c i i d L", "f|g", "", "c f d g", ""},
		{"c i d i", "f", "more", "c f d", ""},
		{"c d", "f|g", "more", "c d", "f g"},
		{"c i L d", "", "", "c d", ""},
	} {
		p := Python{Rest: test.rest}
		for run := range strings.SplitSeq(test.runs, "|") {
			if test.runs != "" {
				p.Runs = append(p.Runs, frames(run))
			}
		}
		var all []code
		for name := range strings.FieldsSeq(test.calls) {
			c := code{frames: frames("inlined " + name), ofPython: true}
			switch name {
			case "L":
				c.native.Function = "_PyEval_EvalFrameDefault.cold"
			case "i":
				c.native.Function = name
			default:
				c = code{frames: frames(name)}
			}
			all = append(all, c)
		}
		left := p.replace(all)
		var stack []mem.Frame
		for _, c := range all {
			stack = append(stack, c.frames...)
		}
		assert.Equal(t, frames(test.want), stack, fmt.Sprint(test))
		assert.Equal(t, frames(test.left), left, fmt.Sprint(test))
	}
}

package tracker

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Frame is one function call of a stack.
type Frame struct {
	Function string `json:"function"` // with its import path: "main.load"
	File     string `json:"file"`     // as the compiler recorded it
	Line     int    `json:"line"`
}

// IsZero reports whether the frame is unknown.
func (f Frame) IsZero() bool { return f == Frame{} }

// String prints the frame short: "main.go:12 main.load".
func (f Frame) String() string { return string(f.append(nil)) }

func (f Frame) append(b []byte) []byte {
	if f.IsZero() {
		return append(b, "unknown"...)
	}
	b = append(b, path.Base(f.File)...)
	b = append(b, ':')
	b = strconv.AppendInt(b, int64(f.Line), 10)
	b = append(b, ' ')
	return append(b, path.Base(importPath(f.Function))...)
}

// Stack is the calls that led to an allocation, innermost first. It is shared:
// do not write to it.
type Stack []Frame

// String prints the stack as a Go panic does, a function and its file and line in turn.
func (s Stack) String() string {
	var b strings.Builder
	for _, f := range s {
		fmt.Fprintf(&b, "%s(...)\n\t%s:%d\n", f.Function, f.File, f.Line)
	}
	return b.String()
}

// Site returns the line of the user's code: the innermost frame that is of
// neither the Go runtime, nor this module's packages, nor gorgonia.org/cu, nor
// the libraries, which are import paths. Where all are, it is the outermost that
// is not of the runtime.
//
// A stack that found no room in the tracker (see Config.MaxStacks) has a frame
// at its end that says so, in parentheses; it is not a site if there is another.
func (s Stack) Site(libraries ...string) Frame {
	site, _ := s.site(slices.Concat(ownLibraries, libraries))
	return site
}

// site is Site where the libraries are all that is passed over beside the
// runtime. It also reports whether the frame is of the user's code.
func (s Stack) site(libraries []string) (outermost Frame, users bool) {
	for _, f := range s {
		switch {
		case inLibrary(f.Function, goRuntime):
		case f.isNote() && !outermost.IsZero():
		case !inLibrary(f.Function, libraries):
			return f, true
		default:
			outermost = f
		}
	}
	return outermost, false
}

// isNote reports whether the frame is no call, but says what became of the others.
func (f Frame) isNote() bool { return strings.HasPrefix(f.Function, "(") }

// goRuntime begins goroutines (runtime.goexit), panics and runs cleanups.
var goRuntime = []string{"runtime"}

// ownLibraries are passed over in every program: the tracker's own callers, and
// the bindings that it stands between.
var ownLibraries = []string{
	"github.com/gpumemtrack/gpumemtrack/alloc",
	"github.com/gpumemtrack/gpumemtrack/tracker",
	"gorgonia.org/cu",
}

// inLibrary reports whether the function belongs to a package at or below one
// of the import paths. A package's external tests ("path_test") do not.
func inLibrary(function string, libraries []string) bool {
	function = importPath(function)
	for _, lib := range libraries {
		if rest, ok := strings.CutPrefix(function, lib); ok && rest != "" && (rest[0] == '.' || rest[0] == '/') {
			return true
		}
	}
	return false
}

// importPath is a function's name as the source has it: the linker writes a dot of
// a path's last element as %2e, as in "gopkg.in/yaml%2ev3.Load".
func importPath(function string) string { return strings.ReplaceAll(function, "%2e", ".") }

package mem

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
)

// Frame is one function call of a stack.
type Frame struct {
	Function string `json:"function"` // with its import path: "main.load"
	File     string `json:"file"`     // path as the compiler recorded it
	Line     int    `json:"line"`
}

// String prints the frame short: "main.go:12 main.load".
func (f Frame) String() string { return string(callsite.AppendLine(nil, f.Function, f.File, f.Line)) }

// Stack is the calls that led to an allocation, innermost first. Stacks are shared: do not write to
// one.
type Stack []Frame

// String returns the stack as a Go panic prints it: a function, then its file and line, where they are known. A remark that stands
// in place of frames is a line of its own.
func (s Stack) String() string {
	var b strings.Builder
	for _, f := range s {
		b.WriteString(f.Function)
		if remark := strings.HasPrefix(f.Function, "(") && f.File == ""; !remark {
			b.WriteString("(...)")
		}
		switch {
		case f.Line > 0:
			fmt.Fprintf(&b, "\n\t%s:%d", f.File, f.Line)
		case f.File != "":
			fmt.Fprintf(&b, "\n\t%s", f.File)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// CallSite returns the line of the user's code: the innermost frame that is of neither the Go
// runtime, nor this module's packages, nor gorgonia's, nor the libraries, which are import paths;
// in Python, of neither the standard library nor a package that was installed. If every frame is
// one of these, the call site is the outermost frame in Go, and in a backward pass of PyTorch its
// operation. See package callsite.
//
// If the tracker had no room for the whole stack (see Config.MaxStacks), the last frame says so, in
// parentheses. It is the call site only if there is no other frame.
func (s Stack) CallSite(libraries ...string) Frame {
	rule := ruleOf(libraries)
	i, _ := callsite.Find(len(s), func(i int) callsite.Rank { return rule.Rank(s[i].Function, s[i].File) })
	if i < 0 {
		return Frame{}
	}
	return s[i]
}

func ruleOf(libraries []string) callsite.Rule {
	return callsite.Rule{Go: slices.Concat(callsite.GoLibraries, libraries)}
}

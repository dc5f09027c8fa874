package mem

import (
	"fmt"
	"path"
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

// String returns the stack as a Go panic prints it: a function, then its file and line, where they are known. A note that stands
// in place of frames is a line of its own.
func (s Stack) String() string {
	var b strings.Builder
	for _, f := range s {
		b.WriteString(f.Function)
		if note := strings.HasPrefix(f.Function, "(") && f.File == ""; !note {
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

// Path returns the calls of the user's own code, by the rule of CallSite. If there are none, it has
// only the line that CallSite returns.
func (s Stack) Path(libraries ...string) (p Path) {
	rule := ruleOf(libraries)
	for _, f := range s {
		switch rule.Rank(f.Function, f.File) {
		case callsite.User, callsite.Note:
			p = append(p, f)
		case callsite.Start:
			return p.or(s.CallSite(libraries...))
		}
	}
	return p.or(s.CallSite(libraries...))
}

// Path is the calls of the program's own code that led to an allocation, innermost first: a Stack
// without the frames of the Go runtime, of this module and of Config.Libraries. A Path may stand
// for several call stacks. Then it ends where they begin to call different functions, and a line
// number is 0 if they pass a function at different lines.
type Path []Frame

// String prints the functions, "main.decode <- handle <- serveHTTP". A package is named when it
// differs from the one before. At most eight functions are printed.
func (p Path) String() string {
	const most = 8
	if len(p) == 0 {
		return "unknown"
	}
	var names []string
	before := ""
	for _, f := range p[:min(len(p), most)] {
		if callsite.IsNative(f.Function) {
			names, before = append(names, callsite.Name(f.Function)), ""
			continue
		}
		name := path.Base(f.Function)
		pkg, function, ok := strings.Cut(name, ".") // a dot of the package itself is %2e
		if ok && pkg == before {
			name = function
		}
		before = pkg
		names = append(names, callsite.ImportPath(name))
	}
	if rest := len(p) - most; rest > 0 {
		names = append(names, fmt.Sprintf("%d more", rest))
	}
	return strings.Join(names, " <- ")
}

// or returns p, or if p is empty a path of the call site alone.
func (p Path) or(site Frame) Path {
	if len(p) == 0 && site != (Frame{}) {
		return Path{site}
	}
	return p
}

func ruleOf(libraries []string) callsite.Rule {
	return callsite.Rule{Go: slices.Concat(callsite.GoLibraries, libraries)}
}

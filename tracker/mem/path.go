package mem

import (
	"fmt"
	"path"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
)

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

// or returns p, or if p is empty a path of the call site alone.
func (p Path) or(site Frame) Path {
	if len(p) == 0 && site != (Frame{}) {
		return Path{site}
	}
	return p
}

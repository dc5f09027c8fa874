package tracker

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// Path is the calls of the program's own code that led to an allocation,
// innermost first: a Stack without the frames of the Go runtime, of this module and of
// Config.Libraries. Where it stands for several call stacks, it goes as far as they call the
// same functions, and the line of a function that they pass at different lines is 0.
type Path []Frame

// String prints the functions, "main.decode <- handle <- serveHTTP", with their
// package where it is not that of the one before. Of a long path it prints the
// first eight.
func (p Path) String() string {
	const most = 8
	if len(p) == 0 {
		return "unknown"
	}
	var names []string
	before := ""
	for _, f := range p[:min(len(p), most)] {
		name := path.Base(f.Function)
		pkg, function, ok := strings.Cut(name, ".") // a dot of the package itself is %2e
		if ok && pkg == before {
			name = function
		}
		before = pkg
		names = append(names, importPath(name))
	}
	if rest := len(p) - most; rest > 0 {
		names = append(names, fmt.Sprintf("%d more", rest))
	}
	return strings.Join(names, " <- ")
}

// PathShare is a path to a line of code, and its share of the buffers that were
// ever allocated there, from 0 to 1.
type PathShare struct {
	Path  Path    `json:"path"`
	Share float64 `json:"share"`
}

// String prints the path and the share: "main.decode <- warm, 3.1 %".
func (p PathShare) String() string { return fmt.Sprintf("%v, %.1f %%", p.Path, 100*p.Share) }

// Path returns the calls that are neither of the Go runtime, nor of this module's
// packages, nor of gorgonia.org/cu, nor of the libraries, which are import paths. Where all
// are, it is the line that Site names.
func (s Stack) Path(libraries ...string) Path {
	return s.path(slices.Concat(ownLibraries, libraries))
}

// path is Path where the libraries are all that is passed over beside the runtime.
func (s Stack) path(libraries []string) (p Path) {
	for _, f := range s {
		if !inLibrary(f.Function, goRuntime) && !inLibrary(f.Function, libraries) {
			p = append(p, f)
		}
	}
	if site, _ := s.site(libraries); len(p) == 0 && !site.IsZero() {
		p = Path{site}
	}
	return p
}

// path returns the way to an interned stack's allocation.
func (s *stacks) path(id callstack.ID) Path { return s.resolve(id).path(s.lines.libraries) }

// common shortens p to what it has in common with q.
func (p Path) common(q Path) Path {
	n := p.sameCalls(q)
	p = slices.Clone(p[:n])
	for i := range p {
		if p[i] != q[i] {
			p[i].Line = 0
		}
	}
	return p
}

// calls names the functions.
func (p Path) calls() string {
	var b strings.Builder
	for _, f := range p {
		b.WriteString(f.Function)
		b.WriteByte('\n')
	}
	return b.String()
}

// sameCalls returns how many functions both begin with.
func (p Path) sameCalls(q Path) int {
	n := 0
	for n < min(len(p), len(q)) && p[n].Function == q[n].Function {
		n++
	}
	return n
}

// Callers is how a line of code is reached that holds suspicious memory.
type Callers struct {
	// Path is what the call stacks of that memory have in common.
	Path Path `json:"path"`
	// Others are the paths by which others allocate at the same line, each up to
	// where it leaves Path: at most four, those of more buffers first.
	Others []PathShare `json:"others"`
}

const maxOthers = 4

// newCallers tells how buffers were reached from the counts of all call stacks of their line.
func newCallers(buffers []held, line map[callstack.ID]stackCount, resolve func(callstack.ID) Path) Callers {
	theirs := make(map[callstack.ID]bool)
	var common Path
	for _, b := range buffers {
		if !theirs[b.stack] {
			theirs[b.stack] = true
			p := resolve(b.stack)
			if len(theirs) > 1 {
				p = common.common(p)
			}
			common = p
		}
	}
	var all int64
	others := make(map[string]PathShare)
	for id, n := range line {
		all += n.total
		if theirs[id] {
			continue
		}
		p := resolve(id)
		same := p.sameCalls(common)
		if same == len(common) {
			continue
		}
		p = p[:min(same+1, len(p))]
		key := p.calls()
		if known, ok := others[key]; ok {
			p = known.Path.common(p)
		}
		others[key] = PathShare{p, others[key].Share + float64(n.total)}
	}
	c := Callers{Path: common, Others: slices.AppendSeq([]PathShare{}, maps.Values(others))}
	slices.SortFunc(c.Others, func(x, y PathShare) int {
		return cmp.Or(cmp.Compare(y.Share, x.Share), cmp.Compare(x.Path.calls(), y.Path.calls()))
	})
	c.Others = c.Others[:min(len(c.Others), maxOthers)]
	for i := range c.Others {
		c.Others[i].Share /= float64(all)
	}
	return c
}

// String prints a line for the path and one for each of the others.
func (c Callers) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tpath: %v", c.Path)
	for _, other := range c.Others {
		fmt.Fprintf(&b, "\n\talso: %v", other)
	}
	return b.String()
}

package kineto

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// call is an operator or a function: from when to when, in nanoseconds.
type call struct {
	from, to int64
	name     int32
}

// callsIn are the calls of a trace, by thread.
type callsIn struct {
	names   tables.Numbers[string]
	threads map[thread][]call
}

// The bytes that things take.
const (
	callBytes  = 48 // with the growth of its list
	nameBytes  = 128
	nodeBytes  = 96
	frameBytes = 48
)

func (c *callsIn) add(on thread, x call, name string, use func(int64) error) error {
	name = bounded.Name(withoutAddress(name))
	n, isNew := c.names.Of(name)
	x.name = int32(n)
	c.threads[on] = append(c.threads[on], x)
	taken := int64(callBytes)
	if isNew {
		taken += nameBytes + int64(len(name))
	}
	return use(taken)
}

// withoutAddress makes names of one function alike: "<built-in method apply of Function object at 0x7f2c>".
func withoutAddress(name string) string {
	before, rest, ok := strings.Cut(name, " object at 0x")
	if !ok {
		return name
	}
	return before + strings.TrimLeft(rest, "0123456789abcdefABCDEF")
}

// stackFinder finds the calls around a moment, for moments that never go back.
type stackFinder struct {
	use     func(int64) error
	frames  []mem.Frame // by the number of the name
	threads map[thread]*progress
	table   tables.StackTable
	nodes   map[node]int32           // paths of calls
	paths   []node                   // by their number, from 1
	ids     map[int32]tables.StackID // of the paths that were asked for
}

// progress is a thread's calls, and those that are open at the moment that was asked for last.
type progress struct {
	calls []call
	next  int
	open  []openCall
}

type openCall struct {
	to   int64
	path int32
}

// node is a call with the path to its caller; 0 is no caller.
type node struct{ caller, name int32 }

func (c *callsIn) stacks(use func(int64) error) *stackFinder {
	f := &stackFinder{use: use, frames: make([]mem.Frame, len(c.names)), threads: make(map[thread]*progress), nodes: make(map[node]int32), paths: make([]node, 1), ids: make(map[int32]tables.StackID)}
	for name, i := range c.names {
		f.frames[i] = frameOf(name)
	}
	for on, list := range c.threads {
		slices.SortStableFunc(list, func(x, y call) int { return cmp.Or(cmp.Compare(x.from, y.from), cmp.Compare(y.to, x.to)) })
		f.threads[on] = &progress{calls: list}
	}
	return f
}

// maxDepth bounds a stack.
const maxDepth = 1024

// at returns the call stack of a thread at a moment, which is not before the last that was asked for; 0 if it has none.
func (f *stackFinder) at(on thread, at int64) (tables.StackID, error) {
	w := f.threads[on]
	if w == nil {
		return 0, nil
	}
	for ; w.next < len(w.calls) && w.calls[w.next].from <= at; w.next++ {
		c := w.calls[w.next]
		w.close(c.from)
		if len(w.open) >= maxDepth || c.to < at {
			continue
		}
		path, err := f.path(node{w.path(), c.name})
		if err != nil {
			return 0, err
		}
		w.open = append(w.open, openCall{c.to, path})
	}
	w.close(at)
	return f.stack(w.path())
}

// close takes out the calls that ended before a moment.
func (w *progress) close(at int64) {
	for n := len(w.open); n > 0 && w.open[n-1].to < at; n-- {
		w.open = w.open[:n-1]
	}
}

func (w *progress) path() int32 {
	if len(w.open) == 0 {
		return 0
	}
	return w.open[len(w.open)-1].path
}

func (f *stackFinder) path(n node) (int32, error) {
	id, ok := f.nodes[n]
	if ok {
		return id, nil
	}
	id = int32(len(f.paths))
	f.nodes[n] = id
	f.paths = append(f.paths, n)
	return id, f.use(nodeBytes)
}

// stack returns the call stack of a path, innermost first.
func (f *stackFinder) stack(path int32) (tables.StackID, error) {
	if path == 0 {
		return 0, nil
	}
	if id, ok := f.ids[path]; ok {
		return id, nil
	}
	var stack mem.Stack
	for p := path; p != 0; p = f.paths[p].caller {
		stack = append(stack, f.frames[f.paths[p].name])
	}
	id := f.table.Add(stack, siteIn(stack))
	f.ids[path] = id
	return id, f.use(int64(len(stack)) * frameBytes)
}

// function matches the name of a Python function: "torch/nn/modules/module.py(1511): _call_impl".
var function = regexp.MustCompile(`^(.+)\((\d{1,9})\): (.*)$`)

// packagesFolder stands before the files of PyTorch, from whose paths the profiler cuts the folder that it is installed in.
const packagesFolder = "site-packages/"

func frameOf(name string) mem.Frame {
	m := function.FindStringSubmatch(name)
	if m == nil {
		return mem.Frame{Function: name}
	}
	line, _ := strconv.Atoi(m[2])
	if strings.HasPrefix(m[1], "torch/") {
		m[1] = packagesFolder + m[1]
	}
	return mem.Frame{File: m[1], Line: line, Function: m[3]}
}

// siteIn returns the line of the program's own code in a stack: the innermost Python function that is not of a library, or
// else the innermost call.
func siteIn(stack mem.Stack) mem.Frame {
	var python mem.Stack
	for _, f := range stack {
		if f.Line > 0 {
			python = append(python, f)
		}
	}
	if len(python) == 0 {
		return stack[0]
	}
	return python.CallSite()
}

// Package callsite finds the line of code that an allocation belongs to: the innermost frame of a call stack
// that is the user's own code or, if there is none, the frame that says most. One rule serves Go, Python and
// C++ stacks, and those that mix Python with C++ as PyTorch's do.
package callsite

import (
	"path"
	"strconv"
	"strings"
)

// Rank says how well a frame names the code that asked for memory; higher is better.
type Rank uint8

// The ranks. Of equal frames the innermost is the call site, except where outermost says otherwise.
const (
	// Ignored frames are never a call site: the Go runtime, and notes on frames left out.
	Ignored Rank = iota
	// Note is no function but text in parentheses, such as how many frames are left out.
	Note
	// Start begins a thread of PyTorch's backward pass. What called it is no user's code, whatever its name.
	Start
	// Machinery runs programs and captures stacks: the Python interpreter, the start of threads, torch::unwind.
	Machinery
	// Allocator frames ask for memory on behalf of others: c10's allocator, at::empty, dispatchers.
	Allocator
	// Standard is Python's standard library.
	Standard
	// Operator is C++ code of PyTorch or of the libraries below it.
	Operator
	// Wrapper is Python code of a framework that only calls on, such as Module._call_impl.
	Wrapper
	// Framework is Python code of PyTorch or JAX.
	Framework
	// Library is Go code of this module or of a library that the caller names.
	Library
	// Native is C++ code that is in none of the known libraries.
	Native
	// Autograd is a node of PyTorch's backward pass, such as BmmBackward0.
	Autograd
	// Package is Python code that was installed, such as that of einops.
	Package
	// Generated is Python code that a program made while it ran, so that no file has it: <string>, <einx 3>.
	Generated
	// User is the user's own code.
	User
)

// outermost reports whether of several such frames the outermost, nearest to the user, tells most.
func (r Rank) outermost() bool { return r == Library || r == Operator || r == Allocator }

// Over reports whether a frame of rank r tells more than the frame of rank best, the best of the frames that it called.
func (r Rank) Over(best Rank) bool { return r > best || r == best && r.outermost() }

// Rule tells code of libraries from the user's. Its zero value knows the libraries
// of Python and C++, and of Go the runtime only.
type Rule struct {
	Go []string // import paths of libraries, with all packages below them, whether or not they end in "/..."
}

// GoLibraries are skipped in every Go program: this module's packages that others call, and the
// libraries of Go that hold GPU memory for their callers.
var GoLibraries = []string{
	"github.com/gpumemtrack/gpumemtrack/alloc",
	"github.com/gpumemtrack/gpumemtrack/contrib/gomlx",
	"github.com/gpumemtrack/gpumemtrack/contrib/llama",
	"github.com/gpumemtrack/gpumemtrack/tracker",
	"github.com/gomlx/compute",
	"github.com/gomlx/go-xla",
	"github.com/gomlx/gomlx",
	"github.com/hybridgroup/yzma",
	"github.com/yalue/onnxruntime_go",
	"gorgonia.org/cu",
	"gorgonia.org/gorgonia",
	"gorgonia.org/tensor",
}

// Rank ranks a frame by its function and file, as the stack has them.
func (r Rule) Rank(function, file string) Rank {
	switch {
	case len(function) > 0 && function[0] == '(' && !IsNative(function):
		return Note
	case isPython(file):
		return rankPython(function, file)
	case isNative(function, file):
		return rankNative(function, file)
	}
	return r.rankGo(function)
}

// Find returns the index of the call site among n frames, innermost first, and its
// rank; -1 and Ignored if no frame can be it.
func Find(n int, rank func(i int) Rank) (index int, best Rank) {
	index = -1
	for i := range n {
		r := rank(i)
		if r.Over(best) {
			index, best = i, r
		}
		if r == User || r == Start {
			break
		}
	}
	return index, best
}

// goRuntime begins goroutines (runtime.goexit), panics and runs cleanups.
const goRuntime = "runtime"

func (r Rule) rankGo(function string) Rank {
	function = ImportPath(function)
	if within(function, goRuntime) {
		return Ignored
	}
	for _, library := range r.Go {
		if within(function, strings.TrimSuffix(library, "/...")) {
			return Library
		}
	}
	return User
}

// within reports whether a Go function belongs to a package at or below the import
// path. A package's external tests ("path_test") do not.
func within(function, path string) bool {
	rest, ok := strings.CutPrefix(function, path)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == '/')
}

// Base is the last element of a file's path, which may be one of Windows.
func Base(file string) string {
	return path.Base(Slashed(file))
}

// AppendLine appends a line of code as reports show it: "main.go:12 main.load". The line is 0 where it is not known.
func AppendLine(b []byte, function, file string, line int) []byte {
	switch {
	case function == "" && file == "" && line == 0:
		return append(b, "unknown"...)
	case IsNative(function): // whose file is seldom known
		return append(b, Name(function)...)
	case file == "" && line == 0: // the name of an operation
		return append(b, function...)
	}
	b = append(b, Base(file)...)
	if line > 0 {
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(line), 10)
	}
	b = append(b, ' ')
	return append(b, path.Base(ImportPath(function))...)
}

// Slashed is a file's path with slashes: one of Windows begins with a drive or two backslashes.
func Slashed(file string) string {
	if len(file) > 2 && file[1] == ':' && file[2] == '\\' || strings.HasPrefix(file, `\\`) {
		return strings.ReplaceAll(file, `\`, "/")
	}
	return file
}

// ImportPath is a Go function's name as the source has it: the linker writes a dot of
// a path's last element as %2e, as in "gopkg.in/yaml%2ev3.Load".
func ImportPath(function string) string { return strings.ReplaceAll(function, "%2e", ".") }

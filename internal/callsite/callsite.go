// Package callsite finds the line of code that an allocation belongs to: the innermost frame of a call stack
// that is the user's own code or, if there is none, the frame that says most. One rule serves Go, Python and
// C++ stacks, and those that mix Python with C++ as PyTorch's do.
package callsite

import (
	"path"
	"slices"
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
	if function == "" {
		return b
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

// isPython reports whether the file is Python's: a module, or code that has no
// file, which Python names in angle brackets: <stdin>, <frozen runpy>.
func isPython(file string) bool {
	return strings.HasSuffix(file, ".py") || strings.HasPrefix(file, "<") && strings.HasSuffix(file, ">")
}

// frameworks are the packages that run a user's model, by their folder below site-packages.
var frameworks = []string{"torch", "functorch", "torchgen", "jax", "jaxlib", "numpy"}

// ownFolders are of a framework that runs from its sources, not below site-packages.
// A user's own folder may be named torch or jax, so a part within it must follow.
var ownFolders = []string{
	"/torch/nn/", "/torch/optim/", "/torch/autograd/", "/torch/cuda/", "/torch/utils/", "/torch/_", "/torch/amp/",
	"/torch/distributed/", "/torch/fx/", "/torch/jit/", "/torch/functional.py", "/torch/serialization.py",
	"/jax/_src/", "/jax/interpreters/", "/jax/experimental/", "/jaxlib/",
	"/torchinductor_", // what torch.compile writes
}

// wrappers are functions of frameworks that say nothing about the code they call.
var wrappers = []string{
	"_call_impl", "_wrapped_call_impl", "_slow_forward", "__torch_function__", "__torch_dispatch__", "decorate_context",
	"decorate_autocast", "wrapper", "wrapped", "_fn", "fn", "inner", "__call__", "apply", "_engine_run_backward", "_use_grad",
	"reraise_with_filtered_traceback", "cache_miss", "bind", "_true_bind", "bind_with_trace", "process_primitive",
}

func rankPython(function, file string) Rank {
	file = strings.ReplaceAll(file, `\`, "/")
	if _, installed, ok := cutLast(file, "-packages/"); ok { // site-packages, dist-packages
		name, _, _ := strings.Cut(installed, "/")
		if slices.Contains(frameworks, name) {
			return rankFramework(function)
		}
		return Package
	}
	switch {
	case strings.HasPrefix(file, "<frozen "), inStandardLibrary(file):
		return Standard
	case strings.HasPrefix(file, "<eval_with_key>"), slices.ContainsFunc(ownFolders, func(f string) bool { return strings.Contains(file, f) }):
		return rankFramework(function)
	case file[0] == '<' && file != "<stdin>" && !strings.HasPrefix(file, "<ipython-input"): // these two a person typed
		return Generated
	}
	return User
}

func rankFramework(function string) Rank {
	if i := strings.LastIndexByte(function, '.'); i >= 0 { // Python 3.11 names the class too
		function = function[i+1:]
	}
	if slices.Contains(wrappers, function) {
		return Wrapper
	}
	return Framework
}

// inStandardLibrary knows lib/python3.11/threading.py and C:/Python311/Lib/threading.py.
func inStandardLibrary(file string) bool {
	for _, lib := range []string{"/lib/python", "/lib64/python", "/Lib/python"} {
		if _, rest, ok := strings.Cut(file, lib); ok && rest != "" && '0' <= rest[0] && rest[0] <= '9' {
			return true
		}
	}
	if _, rest, ok := strings.Cut(file, "/Python3"); ok {
		_, rest, _ = strings.Cut(rest, "/")
		return strings.HasPrefix(rest, "Lib/")
	}
	return false
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// IsNative reports whether a function's name is of C++.
func IsNative(function string) bool { return strings.Contains(function, "::") }

// isNative reports whether a frame is of C or C++, which PyTorch's symbolizer gives
// no path: "??", "" or a bare name.
func isNative(function, file string) bool {
	switch path.Ext(file) {
	case ".go", ".s":
		return false
	case ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".inc", ".o", ".so", ".pyx":
		return true
	}
	return IsNative(function) || file == "??" || strings.Contains(file, ".so.")
}

// capturing are the functions that take the stack themselves.
var capturing = []string{"unwind::unwind", "CapturedTraceback::gather", "gather_with_cpp"}

// interpreter are the functions of CPython and of the C library that run programs.
var interpreter = []string{
	"_start", "start_thread", "clone", "__clone", "__clone3", "clone3", "main", "__libc_start_main", "__libc_start_call_main",
	"__libc_init_first", "execute_native_thread_routine", "run_eval_code_obj", "run_mod", "pyrun_file", "??", "",
}

// allocators begin the names of functions that ask for memory on behalf of others, or only dispatch.
var allocators = []string{
	"c10::", "at::detail::", "at::empty", "at::native::empty", "at::_ops::empty", "at::TensorIteratorBase::", "at::TensorIterator::", "at::meta::",
	"at::native::resize", "at::native::_resize", "at::native::create_out", "at::create_out", "at::cuda::", "at::DataPtr", "at::Context::", "at::Allocator",
	"at::structured_", "at::wrapper_", "at::impl::", "at::autocast::", "torch::cuda::", "torch::autograd::VariableType::", "torch::autograd::Engine::",
	"torch::autograd::python::", "torch::autograd::Node::", "torch::autograd::PyNode::", "torch::ADInplaceOrView::",
	"torch::unwind", "torch::CapturedTraceback", "torch::handle_torch_function", "std::", "void c10::",
}

// libraries are the namespaces of PyTorch and of the libraries that it is built on.
var libraries = []string{
	"at", "c10", "c10d", "torch", "caffe2", "std", "__gnu_cxx", "pybind11", "cutlass", "cute", "cub", "thrust", "cudnn_frontend", "cudnn", "nccl", "fmt",
	"xla", "tsl", "absl", "jax", "tensorflow", "stream_executor", "nanobind",
}

func rankNative(function, file string) Rank {
	name := cppName(function)
	switch _, node := autogradNode(name); {
	case name == "torch::autograd::python::PythonEngine::thread_init" || name == "torch::autograd::Engine::thread_init":
		return Start
	case node:
		return Autograd
	case slices.ContainsFunc(capturing, func(s string) bool { return strings.Contains(name, s) }), isInterpreter(name, file):
		return Machinery
	case slices.ContainsFunc(allocators, func(s string) bool { return strings.HasPrefix(name, s) }),
		strings.HasPrefix(path.Base(file), "Register"), strings.Contains(file, "core/boxing"):
		return Allocator
	}
	space, _, scoped := strings.Cut(name, "::")
	switch {
	case scoped && slices.Contains(libraries, space):
		return Operator
	case ownSource(file):
		return User
	case scoped:
		return Native
	}
	return Operator
}

// elsewhere are folders that the sources of libraries were compiled in.
var elsewhere = []string{"/usr/", "/opt/", "/build/", "/pytorch/", "/torch/lib/", "-packages/", "/Python/", "/Objects/", "/Modules/"}

// ownSource reports whether a path is complete and in no folder of a library.
func ownSource(file string) bool {
	return path.IsAbs(file) && !slices.ContainsFunc(elsewhere, func(folder string) bool { return strings.Contains(file, folder) })
}

func isInterpreter(name, file string) bool {
	if slices.Contains(interpreter, name) || strings.HasPrefix(name, "Py") || strings.HasPrefix(name, "_Py") || strings.HasPrefix(name, "__libc_") {
		return true
	}
	switch path.Base(file) {
	case "pythonrun.c", "call.c", "methodobject.c", "ceval.c", "pycore_ceval.h", "abstract.h", "typeobject.c", "thread.cc":
		return true
	}
	return false
}

// notNodes are classes of torch::autograd that have an apply and are no operation.
var notNodes = []string{"Node", "PyNode", "Engine", "CppNode", "Function"}

// autogradNode returns the name of the backward operation that a function runs or
// frees: "BmmBackward0" of torch::autograd::generated::BmmBackward0::apply.
func autogradNode(name string) (node string, ok bool) {
	rest, ok := strings.CutPrefix(name, "torch::autograd::")
	if !ok {
		return "", false
	}
	rest = strings.TrimPrefix(rest, "generated::")
	node, method, _ := strings.Cut(rest, "::")
	if method != "apply" && method != "release_variables" || slices.Contains(notNodes, node) {
		return "", false
	}
	return node, true
}

// Name returns the short name of a function to show. Of C++ it leaves out arguments,
// template parameters and the type of the result, and a step of PyTorch's backward
// pass is named after its operation: "autograd BmmBackward0". Other names stay as they are.
func Name(function string) string {
	if !IsNative(function) {
		return function
	}
	name := cppName(function)
	if node, ok := autogradNode(name); ok {
		return "autograd " + node
	}
	if name == "" {
		return function
	}
	return name
}

// cppName is a C++ function without arguments, template parameters, result and
// anonymous namespaces.
func cppName(function string) string {
	function = strings.ReplaceAll(function, "(anonymous namespace)::", "")
	var b strings.Builder
	depth := 0
	for i := range len(function) {
		c := function[i]
		operator := strings.HasSuffix(function[:i], "operator") || strings.HasSuffix(function[:i], "operator(") || strings.HasSuffix(function[:i], "operator-")
		switch {
		case operator && depth == 0:
			b.WriteByte(c)
		case c == '<':
			depth++
		case c == '>':
			depth = max(0, depth-1)
		case depth > 0:
		case c == '(' || c == '{':
			return lastWord(b.String())
		default:
			b.WriteByte(c)
		}
	}
	return lastWord(b.String())
}

// lastWord cuts off the type of a function's result.
func lastWord(s string) string {
	s = strings.TrimSuffix(strings.TrimSpace(s), "::")
	if strings.Contains(s, "operator ") { // a conversion: "operator bool"
		return s
	}
	if _, last, ok := cutLast(s, " "); ok {
		return last
	}
	return s
}

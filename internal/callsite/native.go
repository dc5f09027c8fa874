package callsite

import (
	"path"
	"slices"
	"strings"
)

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

package callsite

import (
	"slices"
	"strings"
)

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

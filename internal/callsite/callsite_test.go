package callsite_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
)

const (
	site  = "/usr/lib/python3/dist-packages/"
	conda = "/opt/conda/lib/python3.11/"
	apply = "(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)"
)

// captured are the innermost frames of every stack that PyTorch takes with C++ frames.
var captured = []string{
	"??\ttorch::unwind::unwind()",
	"??\ttorch::CapturedTraceback::gather(bool, bool, bool)",
	"memory_snapshot.cpp\ttorch::cuda::(anonymous namespace)::gather_with_cpp()",
	"CUDACachingAllocator.cpp\tc10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(signed char, unsigned long, CUstream_st*)",
	"\tc10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)",
	"\tat::TensorBase at::detail::_empty_generic<long>(c10::ArrayRef<long>, c10::Allocator*, c10::DispatchKeySet, c10::ScalarType)",
	"??\tat::detail::empty_cuda(c10::ArrayRef<long>, c10::TensorOptions const&)",
	"RegisterCUDA.cpp\tat::(anonymous namespace)::structured_bmm_out_cuda_functional::set_output_raw_strided(long, c10::ArrayRef<long>)",
	"RegisterCUDA.cpp\tat::(anonymous namespace)::wrapper_CUDA_bmm(at::Tensor const&, at::Tensor const&)",
	"RegisterCUDA.cpp\tc10::impl::wrap_kernel_functor_unboxed_<c10::impl::detail::WrapFunctionIntoFunctor_<c10::CompileTimeFunctionPointer<at::Tensor (c10::DispatchKeySet)> > >::call(c10::OperatorKernel*)",
	"??\tat::_ops::bmm::redispatch(c10::DispatchKeySet, at::Tensor const&, at::Tensor const&)",
	"VariableType_1.cpp\ttorch::autograd::VariableType::(anonymous namespace)::bmm(c10::DispatchKeySet, at::Tensor const&)",
	"??\tat::_ops::bmm::call(at::Tensor const&, at::Tensor const&)",
}

// engine are the outermost frames of PyTorch's backward pass. The last but one is
// execute_native_thread_routine under the name that a published recording gives it.
var engine = []string{
	"\ttorch::autograd::Node::operator()" + apply,
	"??\ttorch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&, torch::autograd::Node*)",
	"??\ttorch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
	"??\ttorch::autograd::Engine::thread_init(int, std::shared_ptr<torch::autograd::ReadyQueue> const&, bool)",
	"??\ttorch::autograd::python::PythonEngine::thread_init(int, std::shared_ptr<torch::autograd::ReadyQueue> const&, bool)",
	"/home/user/train/part2.py\tstep2",
	"??\tstart_thread",
	"\t__clone3",
}

func join(parts ...[]string) (all []string) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// TestWhoseLineItIs is a table of stacks, innermost first, each frame a file and a function. Those of
// PyTorch are from snapshots of real GPUs.
func TestWhoseLineItIs(t *testing.T) {
	for name, test := range map[string]struct {
		stack []string
		file  string
		want  string
		rank  callsite.Rank
	}{
		"backward pass": {
			join(captured, []string{"??\ttorch::autograd::generated::BmmBackward0::apply" + apply}, engine),
			"??", "autograd BmmBackward0", callsite.Autograd,
		},
		"backward pass, a gradient is added up": {
			join(captured, []string{
				"accumulate_grad.cpp\tvoid torch::autograd::AccumulateGrad::accumulateGrad<torch::autograd::AccumulateGrad::apply" + apply + "::{lambda(at::Tensor&&)#1}>(at::Tensor const&)",
				"??\ttorch::autograd::AccumulateGrad::apply" + apply}, engine),
			"??", "autograd AccumulateGrad", callsite.Autograd,
		},
		"backward pass, a check that is no operation": {
			join(captured, []string{"??\tat::native::isnan(at::Tensor const&)", "??\tat::_ops::isnan::call(at::Tensor const&)"}, engine[1:]),
			"??", "at::_ops::isnan::call", callsite.Operator,
		},
		"backward pass, a function of a package": {
			join(captured, []string{
				site + "bitsandbytes/functional.py\tdequantize_4bit",
				site + "bitsandbytes/autograd/_functions.py\tbackward",
				site + "torch/autograd/function.py\tapply",
				"??\ttorch::autograd::PyNode::apply" + apply}, engine),
			site + "bitsandbytes/functional.py", "dequantize_4bit", callsite.Package,
		},
		"backward pass, a function of the user's": {
			join(captured, []string{"/home/user/train/ops.py\tbackward", site + "torch/autograd/function.py\tapply", "??\ttorch::autograd::PyNode::apply" + apply}, engine),
			"/home/user/train/ops.py", "backward", callsite.User,
		},
		"backward pass, seen from Python": {
			[]string{
				site + "torch/autograd/graph.py\t_engine_run_backward", site + "torch/autograd/__init__.py\tbackward", site + "torch/_tensor.py\tbackward",
				"/home/user/train/part2.py\tstep3"},
			"/home/user/train/part2.py", "step3", callsite.User,
		},
		"cut before the operation": {
			captured[:7], "??", "at::detail::empty_cuda", callsite.Allocator,
		},
		"cut in the allocator": {
			captured[:4], "CUDACachingAllocator.cpp", "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc", callsite.Allocator,
		},
		"only the capture": {captured[:1], "??", "torch::unwind::unwind", callsite.Machinery},
		"forward pass through einops": {
			join(captured[:4], []string{
				site + "torch/functional.py\teinsum", site + "einops/_backends.py\teinsum", site + "einops/einops.py\teinsum", "/home/user/train/part1.py\tforward"}),
			"/home/user/train/part1.py", "forward", callsite.User,
		},
		"forward pass, cut in einops": {
			[]string{"??\tat::_ops::clone::call(at::Tensor const&)", site + "torch/_tensor.py\treshape", site + "einops/_backends.py\treshape", site + "einops/einops.py\trearrange"},
			site + "einops/_backends.py", "reshape", callsite.Package,
		},
		"a layer, cut in torch.nn": {
			[]string{
				"LinearAlgebra.cpp\tat::native::_matmul_impl(at::Tensor&, at::Tensor const&, at::Tensor const&)", site + "torch/nn/modules/linear.py\tforward",
				site + "torch/nn/modules/module.py\t_call_impl", site + "torch/nn/modules/module.py\t_wrapped_call_impl"},
			site + "torch/nn/modules/linear.py", "forward", callsite.Framework,
		},
		"a replica's thread": {
			[]string{
				"??\tat::_ops::mul_Tensor::call(at::Tensor const&, at::Tensor const&)", "/home/user/train/part3.py\tstep2",
				site + "torch/nn/parallel/parallel_apply.py\t_worker", "/usr/lib/python3.11/threading.py\trun"},
			"/home/user/train/part3.py", "step2", callsite.User,
		},
		"an operator in Python's own thread": {
			[]string{"??\tat::native::cumsum(at::Tensor const&, long)", "??\tat::_ops::cumsum::call(at::Tensor const&, long)", conda + "threading.py\trun", "??\t_PyEval_EvalFrameDefault"},
			"??", "at::_ops::cumsum::call", callsite.Operator,
		},
		"PyTorch from its sources": {
			[]string{"/home/me/pytorch/torch/nn/functional.py\trelu", "/home/me/pytorch/torch/nn/modules/module.py\t_call_impl", "/home/me/torch/train.py\tmain"},
			"/home/me/torch/train.py", "main", callsite.User,
		},
		"compiled by torch.compile": {
			[]string{"/tmp/torchinductor_me/ab/cabc.py\tcall", site + "torch/_dynamo/eval_frame.py\t_fn", "/home/me/train.py\tstep"},
			"/home/me/train.py", "step", callsite.User,
		},
		"a notebook": {
			[]string{site + "torch/functional.py\teinsum", "/tmp/ipykernel_77/1234.py\t<module>", site + "IPython/core/interactiveshell.py\trun_code"},
			"/tmp/ipykernel_77/1234.py", "<module>", callsite.User,
		},
		"an extension of the user's in C++": {
			[]string{"??\tat::_ops::zeros::call(c10::ArrayRef<c10::SymInt>)", "??\tmy::attention(at::Tensor const&)", "??\tPyObject_Call", "<frozen runpy>\t_run_code"},
			"??", "my::attention", callsite.Native,
		},
		"a program in C++": {
			[]string{"??\tat::_ops::zeros::call(c10::ArrayRef<c10::SymInt>)", "/home/me/train.cpp\tload(Net&)", "??\tmain", "??\t__libc_start_main"},
			"/home/me/train.cpp", "load(Net&)", callsite.User,
		},
		"on Windows": {
			[]string{`C:\Python311\Lib\site-packages\torch\nn\functional.py` + "\trelu", `C:\Python311\Lib\contextlib.py` + "\tinner", `C:\Users\me\train.py` + "\tstep"},
			`C:\Users\me\train.py`, "step", callsite.User,
		},
		"JAX": {
			[]string{
				site + "jax/_src/interpreters/pxla.py\t__call__", site + "jax/_src/profiler.py\twrapper", site + "jax/_src/pjit.py\t_pjit_call_impl_python",
				site + "jax/_src/core.py\tbind", site + "jax/_src/traceback_util.py\treraise_with_filtered_traceback", "/home/me/model.py\tinit", "/home/me/model.py\t<module>"},
			"/home/me/model.py", "init", callsite.User,
		},
		"JAX, under Python 3.11": {
			[]string{site + "jax/_src/interpreters/pxla.py\tExecuteReplicated.__call__", site + "jax/_src/api.py\tdevice_put", conda + "threading.py\tThread.run"},
			site + "jax/_src/api.py", "device_put", callsite.Framework,
		},
		"Go": {
			[]string{
				"/mod/alloc/cache.go\tgithub.com/gpumemtrack/gpumemtrack/alloc.(*Cache).Alloc", "/mod/tracker/buffer.go\tgithub.com/gpumemtrack/gpumemtrack/tracker.(*MemTracker).Alloc",
				"/home/me/main.go\tmain.load", "/usr/local/go/src/runtime/proc.go\truntime.main"},
			"/home/me/main.go", "main.load", callsite.User,
		},
		"Go through gorgonia": {
			[]string{
				"/mod/tracker/cucontext/ledger.go\tgithub.com/gpumemtrack/gpumemtrack/tracker/cucontext.(*Context).MemAlloc", "/mod/tensor/dense.go\tgorgonia.org/tensor.New",
				"/mod/gorgonia/vm_tape.go\tgorgonia.org/gorgonia.(*tapeMachine).RunAll", "/home/me/net.go\texample.com/net.(*Net).Fit"},
			"/home/me/net.go", "example.com/net.(*Net).Fit", callsite.User,
		},
		"Go through GoMLX": {
			[]string{
				"/mod/gomlx/buffer.go\tgithub.com/gpumemtrack/gpumemtrack/contrib/gomlx.(*backend).enter", "/mod/go-xla/compute/xla/backend.go\tgithub.com/gomlx/go-xla/compute/xla.(*Backend).BufferFromFlatData",
				"/mod/compute/shapes/shapes.go\tgithub.com/gomlx/compute/shapes.Shape.Iter", "/mod/gomlx/exceptions.go\tgithub.com/gomlx/gomlx/support/exceptions.TryCatch[...]",
				"/home/me/train.go\tmain.run"},
			"/home/me/train.go", "main.run", callsite.User,
		},
		"Go through llama.cpp and onnxruntime": {
			[]string{
				"/mod/yzma/pkg/llama/model.go\tgithub.com/hybridgroup/yzma/pkg/llama.ModelLoadFromFile", "/mod/onnxruntime_go/onnx.go\tgithub.com/yalue/onnxruntime_go.NewTensor[...]",
				"/home/me/chat.go\tmain.load"},
			"/home/me/chat.go", "main.load", callsite.User,
		},
		"Go, only libraries": {
			[]string{"/mod/tensor/dense.go\tgorgonia.org/tensor.New", "/mod/g/vm.go\tgorgonia.org/gorgonia.(*tapeMachine).RunAll", "/usr/local/go/src/runtime/asm_amd64.s\truntime.goexit"},
			"/mod/g/vm.go", "gorgonia.org/gorgonia.(*tapeMachine).RunAll", callsite.Library,
		},
		"Go, only the runtime": {[]string{"/usr/local/go/src/runtime/asm_amd64.s\truntime.goexit"}, "", "", callsite.Ignored},
		"Go, no room for the rest": {
			[]string{"/home/me/main.go\tmain.load", "\t(call stack table full: other frames left out)"}, "/home/me/main.go", "main.load", callsite.User,
		},
		"Go, no room": {[]string{"\t(call stack table full)"}, "", "(call stack table full)", callsite.Note},
		"Go, a test of a library": {
			[]string{"/mod/tensor/dense_test.go\tgorgonia.org/tensor_test.TestNew"}, "/mod/tensor/dense_test.go", "gorgonia.org/tensor_test.TestNew", callsite.User,
		},
		"generated code over the user's": {
			[]string{"<string>\top0", site + "einx/tracer/compile.py\t__call__", "/home/u/model.py\tforward"}, "/home/u/model.py", "forward", callsite.User,
		},
		"generated code alone": {[]string{site + "einx/a.py\tf", "<string>\top0"}, "<string>", "op0", callsite.Generated},
		"typed in":             {[]string{site + "einx/a.py\tf", "<stdin>\t<module>", "/home/u/model.py\tforward"}, "<stdin>", "<module>", callsite.User},
		"nothing":              {nil, "", "", callsite.Ignored},
	} {
		t.Run(name, func(t *testing.T) {
			rule := callsite.Rule{Go: callsite.GoLibraries}
			at := func(i int) (function, file string) {
				file, function, _ = strings.Cut(test.stack[i], "\t")
				return function, file
			}
			i, rank := callsite.Find(len(test.stack), func(i int) callsite.Rank { return rule.Rank(at(i)) })
			assert.Equal(t, test.rank, rank)
			if rank == callsite.Ignored {
				assert.Equal(t, -1, i)
				return
			}
			function, file := at(i)
			assert.Equal(t, test.file, file)
			if rank == callsite.User {
				assert.Equal(t, test.want, function)
			} else {
				assert.Equal(t, test.want, callsite.Name(function))
			}
		})
	}
}

func TestNames(t *testing.T) {
	for function, want := range map[string]string{
		"main.(*Net).Fit": "main.(*Net).Fit",
		"train_step":      "train_step",
		"torch::autograd::generated::MulBackward0::release_variables()":                                                 "autograd MulBackward0",
		"torch::autograd::Node::operator()" + apply:                                                                     "torch::autograd::Node::operator()",
		"at::Tensor at::_sum_to<c10::SymInt>(at::Tensor, bool)":                                                         "at::_sum_to",
		"std::_Tuple_impl<0ul, at::Tensor, at::Tensor>::~_Tuple_impl()":                                                 "std::_Tuple_impl::~_Tuple_impl",
		"c10::intrusive_ptr<c10::StorageImpl, c10::detail::null<c10::StorageImpl> >::reset_()":                          "c10::intrusive_ptr::reset_",
		"at::native::arange_cuda_out(c10::Scalar const&)::{lambda()#1}::operator()() const":                             "at::native::arange_cuda_out",
		"torch::cuda::(anonymous namespace)::gather_with_cpp()":                                                         "torch::cuda::gather_with_cpp",
		"_object* torch::autograd::TypeError_to_NotImplemented_<&torch::autograd::THPVariable_add>(_object*, _object*)": "torch::autograd::TypeError_to_NotImplemented_",
		"::":       "::",
		"a::b>>>(": "a::b",
	} {
		assert.Equal(t, want, callsite.Name(function), function)
	}
}

func FuzzFind(f *testing.F) {
	f.Add("at::Tensor at::_sum_to<c10::SymInt>(at::Tensor, bool)", "??")
	f.Add("forward", site+"torch/nn/modules/linear.py")
	f.Add("main.main", "main.go")
	f.Add("a::\xff\xff(", "??")
	f.Fuzz(func(t *testing.T, function, file string) {
		rule := callsite.Rule{Go: callsite.GoLibraries}
		i, rank := callsite.Find(1, func(int) callsite.Rank { return rule.Rank(function, file) })
		assert.Equal(t, rank == callsite.Ignored, i < 0)
		assert.LessOrEqual(t, len(callsite.Name(function)), len(function)+len("autograd "))
	})
}

// TestLibrariesOfTheProgram: a path means all packages below it, with and without an ellipsis.
func TestLibrariesOfTheProgram(t *testing.T) {
	for _, library := range []string{"example.com/train", "example.com/train/..."} {
		rule := callsite.Rule{Go: []string{library}}
		assert.Equal(t, callsite.Library, rule.Rank("example.com/train.Step", "/home/me/step.go"))
		assert.Equal(t, callsite.Library, rule.Rank("example.com/train/tensor.(*Dense).Clone", "/home/me/dense.go"))
		assert.Equal(t, callsite.User, rule.Rank("example.com/trainer.Run", "/home/me/run.go"))
		assert.Equal(t, callsite.User, rule.Rank("example.com/train_test.TestStep", "/home/me/step_test.go"))
	}
}

package symbols

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func TestWhoseLine(t *testing.T) {
	c := mem.Frame{Function: "0x7f00"}
	for name, test := range map[string]struct {
		stack mem.Stack
		want  int
	}{
		"cgo": {mem.Stack{
			{Function: "_cgo_1234_Cfunc_cuMemAlloc_v2", File: "/tmp/go-build/cgo-gcc-prolog", Line: 60},
			{Function: "runtime.asmcgocall", File: "/go/src/runtime/asm_amd64.s"},
			{Function: "main._Cfunc_cuMemAlloc_v2", File: "_cgo_gotypes.go"},
			{Function: "main.loadWeights", File: "/home/me/main.go", Line: 5},
			{Function: "main.main", File: "/home/me/main.go", Line: 9},
		}, 3},
		"purego": {mem.Stack{
			{Function: "syscallX", File: "/go/pkg/mod/github.com/ebitengine/purego@v0.11.3/sys_amd64.s"},
			{Function: "github.com/ebitengine/purego.SyscallN", File: "/go/pkg/mod/github.com/ebitengine/purego@v0.11.3/syscall.go"},
			{Function: "example.com/llama.(*Model).Load", File: "/home/me/llama.go", Line: 5},
		}, 2},
		"purego's functions, which reflect makes": {mem.Stack{
			{Function: "github.com/ebitengine/purego.RegisterFunc.func4", File: "/go/pkg/mod/github.com/ebitengine/purego@v0.11.3/func.go"},
			{Function: "reflect.callReflect", File: "/go/src/reflect/value.go"},
			{Function: "reflect.makeFuncStub", File: "/go/src/reflect/asm_amd64.s"},
			{Function: "main.loadWeights", File: "/home/me/main.go", Line: 5},
		}, 3},
		"yzma": {mem.Stack{
			{Function: "github.com/jupiterrider/ffi.Call", File: "/go/pkg/mod/github.com/jupiterrider/ffi@v0.8.0/ffi.go"},
			{Function: "github.com/jupiterrider/ffi.Fun.Call", File: "/go/pkg/mod/github.com/jupiterrider/ffi@v0.8.0/fun.go"},
			{Function: "github.com/hybridgroup/yzma/pkg/llama.ModelLoadFromFile", File: "/go/pkg/mod/github.com/hybridgroup/yzma@v1.31.0/pkg/llama/model.go"},
			{Function: "main.main", File: "/home/me/main.go", Line: 5},
		}, 3},
		"Python through a library": {mem.Stack{
			c, {Function: "libtrain.so+0x500", File: "/home/me/libtrain.so"},
			{Function: "_PyEval_EvalFrameDefault", File: "/usr/bin/python3.12"},
			{Function: "load", File: "/home/me/train.py"},
			{Function: "Py_RunMain", File: "/usr/bin/python3.12"},
		}, 3},
		"C++ without sources": {mem.Stack{
			{Function: "my::Pool::grow(unsigned long)", File: "/home/me/train"},
			{Function: "main", File: "/home/me/train"},
			{Function: "libc.so.6+0x27249", File: "/usr/lib/libc.so.6"},
		}, 0},
		"llama-server, without lines": {mem.Stack{
			{Function: "libggml-base.so.0+0x33400", File: "/home/me/bin/libggml-base.so.0"},
			{Function: "ggml_backend_sched_reserve", File: "/home/me/bin/libggml-base.so.0"},
			{Function: "llama_context::graph_reserve(unsigned int)", File: "/home/me/bin/libllama.so.0"},
			{Function: "server_context_impl::load_model(common_params&)", File: "/home/me/bin/libllama-server-impl.so"},
		}, 2},
		"whisper.cpp from Python": {mem.Stack{
			{Function: "alloc_tensor_range", File: "/home/me/lib/libggml-base-319ad4fb.so.0.13.1"},
			{Function: "whisper_init_state", File: "/home/me/lib/libwhisper.so.1"},
			{Function: "<module>", File: "/home/me/speech.py", Line: 35},
		}, 2},
		"llama.cpp from Go": {mem.Stack{
			{Function: "alloc_tensor_range", File: "/home/me/lib/libggml-base.so"},
			{Function: "llama_model_load_from_file", File: "/home/me/lib/libllama.so"},
			{Function: "main.load", File: "/home/me/main.go", Line: 35},
		}, 2},
		"stripped": {mem.Stack{
			{Function: "train+0x1249", File: "/home/me/train"},
			{Function: "libc.so.6+0x27249", File: "/usr/lib/libc.so.6"},
		}, 0},
		"nothing": {nil, -1},
	} {
		t.Run(name, func(t *testing.T) {
			want := mem.Frame{}
			if test.want >= 0 {
				want = test.stack[test.want]
			}
			assert.Equal(t, want, callSite(test.stack))
		})
	}
}

package enginelog_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/enginelog"
	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
)

func read(t *testing.T, text string) []*enginelog.Report {
	t.Helper()
	reports, err := enginelog.Read(strings.NewReader(text))
	require.NoError(t, err)
	return reports
}

// said is what a report says, in few letters: "TP0 weights 15.0 GiB, KV cache 1.5 GiB*; ..." where a star is what the
// engine expects.
func said(r *enginelog.Report) string {
	var all []string
	for _, d := range r.Devices {
		var parts []string
		for _, row := range d.Rows {
			star := ""
			if row.Planned {
				star = "*"
			}
			parts = append(parts, fmt.Sprintf("%s %v%s", row.Of, row.Bytes, star))
		}
		all = append(all, strings.TrimSpace(d.Name+" "+strings.Join(parts, ", ")))
	}
	return strings.Join(all, "; ")
}

// limits are what is known of a device's memory: total, free before, limit, free after.
func limits(d *enginelog.Device) string {
	var all []string
	for _, n := range []*alloc.Bytes{d.Total, d.Free, d.Limit, d.Left} {
		if n == nil {
			all = append(all, "?")
		} else {
			all = append(all, n.String())
		}
	}
	return strings.Join(all, " ")
}

// fits is what is known of the capacity.
func fits(c enginelog.Capacity) string {
	text, _ := json.Marshal(c)
	var values map[string]any
	_ = json.Unmarshal(text, &values)
	for key, value := range values {
		if value == nil {
			delete(values, key)
		}
	}
	text, _ = json.Marshal(values)
	return string(text)
}

// logs are starts of engines in the words of their releases, with what they say. Names and paths are made up, numbers
// mostly those of public reports.
var logs = []struct{ name, text, said, fits string }{
	{"vLLM 0.6.4", `Loading model weights took 14.9888 GB
Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB peak_torch_memory=17.06GiB memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90
# GPU blocks: 1952, # CPU blocks: 2048
Maximum concurrency for 20000 tokens per request: 1.56x
`, "weights 15.0 GiB, activations 2.1 GiB, outside PyTorch 358.4 MiB, KV cache 3.8 GiB", `{"blocks":1952,"context_tokens":20000,"fraction":0.9,"requests":1.56}`},
	{"vLLM 0.6.5, a table", "INFO 12-13 19:55:25 worker.py:243] total_gpu_memory\t79.22GiB\nINFO 12-13 19:55:25 worker.py:243] gpu_memory_utilization\t0.90\n" +
		"INFO 12-13 19:55:25 worker.py:243] the current vLLM instance can use\t71.29GiB\nINFO 12-13 19:55:25 worker.py:243] model weights take\t7.48GiB\n" +
		"INFO 12-13 19:55:25 worker.py:243] non_torch_memory\t3.58GiB\nINFO 12-13 19:55:25 worker.py:243] PyTorch activation peak memory\t1.26GiB\n" +
		"INFO 12-13 19:55:25 worker.py:243] available_kv_cache_memory\t58.97GiB\n",
		"weights 7.5 GiB, outside PyTorch 3.6 GiB, activations 1.3 GiB, KV cache 59.0 GiB", `{"fraction":0.9}`},
	{"vLLM 0.8, V0, two workers", `INFO 04-12 08:20:00 [llm_engine.py:241] Initializing a V0 LLM engine (v0.8.3) with config: model='org/model', speculative_config=None, max_seq_len=16384, tensor_parallel_size=2
(VllmWorkerProcess pid=521) INFO 04-12 08:21:19 [worker.py:267] the current vLLM instance can use total_gpu_memory (23.58GiB) x gpu_memory_utilization (0.99) = 23.35GiB
(VllmWorkerProcess pid=521) INFO 04-12 08:21:19 [worker.py:267] model weights take 21.21GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.37GiB; the rest of the memory reserved for KV Cache is 1.57GiB.
(VllmWorkerProcess pid=507) INFO 04-12 08:21:19 [worker.py:267] model weights take 21.21GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.37GiB; the rest of the memory reserved for KV Cache is 1.57GiB.
`, "process 521 weights 21.2 GiB, outside PyTorch 204.8 MiB, activations 378.9 MiB, KV cache 1.6 GiB; process 507 weights 21.2 GiB, outside PyTorch 204.8 MiB, activations 378.9 MiB, KV cache 1.6 GiB",
		`{"context_tokens":16384,"fraction":0.99,"tensor_parallel":2}`},
	{"vLLM 0.11, three ranks", `(EngineCore_DP0 pid=99) INFO 10-01 10:00:00 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='org/model', tokenizer='x', max_seq_len=32768, tensor_parallel_size=2
(Worker_TP0 pid=101) INFO 10-01 10:00:10 [gpu_model_runner.py:2653] Model loading took 7.6065 GiB and 3.1 seconds
(Worker_TP1 pid=102) INFO 10-01 10:00:10 [gpu_model_runner.py:2653] Model loading took 7.6065 GiB and 3.3 seconds
(Worker_TP0 pid=101) INFO 10-01 10:00:20 [gpu_worker.py:298] Available KV cache memory: 11.02 GiB
(Worker_TP1 pid=102) INFO 10-01 10:00:20 [gpu_worker.py:298] Available KV cache memory: 10.98 GiB
(EngineCore_DP0 pid=99) INFO 10-01 10:00:21 [kv_cache_utils.py:1087] GPU KV cache size: 360,544 tokens
(EngineCore_DP0 pid=99) INFO 10-01 10:00:21 [kv_cache_utils.py:1091] Maximum concurrency for 32,768 tokens per request: 11.00x
(EngineCore_DP0 pid=99) INFO 10-01 10:00:21 [kv_cache_utils.py:1087] GPU KV cache size: 359,232 tokens
(EngineCore_DP0 pid=99) INFO 10-01 10:00:21 [kv_cache_utils.py:1091] Maximum concurrency for 32,768 tokens per request: 10.96x
(Worker_TP0 pid=101) INFO 10-01 10:00:30 [gpu_model_runner.py:3480] Graph capturing finished in 5 secs, took 0.52 GiB
`, "TP0 weights 7.6 GiB, KV cache 11.0 GiB, CUDA graphs 532.5 MiB; TP1 weights 7.6 GiB, KV cache 11.0 GiB", `{"context_tokens":32768,"requests":10.96,"tensor_parallel":2,"tokens":359232}`},
	{"vLLM 0.14, debug", `(EngineCore_DP0 pid=387) DEBUG 01-08 16:44:20 [gpu_worker.py:347] Initial free memory: 78.74 GiB; Requested memory: 0.900000 (util), 71.3 GiB
(EngineCore_DP0 pid=387) DEBUG 01-08 16:44:20 [gpu_worker.py:353] Free memory after profiling: 62.4 GiB (total), 54.96 GiB (within requested)
(EngineCore_DP0 pid=387) DEBUG 01-08 16:44:20 [gpu_worker.py:358] Memory profiling takes 3.20 seconds. Total non KV cache memory: 16.54GiB; torch peak memory increase: 1.21GiB; non-torch forward increase memory: 0.33GiB; weights memory: 15.0GiB.
(EngineCore_DP0 pid=387) INFO 01-08 16:44:29 [gpu_worker.py:359] Available KV cache memory: 54.76 GiB
`, "DP0 activations 1.2 GiB, outside PyTorch 337.9 MiB, KV cache 54.8 GiB", `{"fraction":0.9}`},
	{"vLLM 0.22", `(EngineCore pid=418) INFO 03-02 09:26:25 [gpu_model_runner.py:5132] Model loading took 29.08 GiB memory and 596.567233 seconds
(EngineCore pid=418) INFO 03-02 09:27:30 [gpu_model_runner.py:6365] Estimated CUDA graph memory: 0.14 GiB total
(EngineCore pid=418) INFO 03-02 09:27:30 [gpu_worker.py:466] Available KV cache memory: 42.54 GiB
(EngineCore pid=418) INFO 03-02 09:27:30 [kv_cache_utils.py:1733] GPU KV cache size: 464,656 tokens
(EngineCore pid=418) INFO 03-02 09:27:30 [kv_cache_utils.py:1734] Maximum concurrency for 8,192 tokens per request: 56.72x
`, "weights 29.1 GiB, CUDA graphs 143.4 MiB*, KV cache 42.5 GiB", `{"context_tokens":8192,"requests":56.72,"tokens":464656}`},
	{"vLLM 0.25, the advice at the end", `(APIServer pid=7) INFO 07-14 10:00:00 [utils.py:302]        █▄█▀ █     █     █     █  version 0.25.0
(APIServer pid=7) INFO 07-14 10:00:00 [utils.py:302] non-default args: {'model': 'org/model', 'max_model_len': 8192, 'gpu_memory_utilization': 0.85}
(EngineCore pid=9) INFO 07-14 10:01:00 [gpu_worker.py:812] Free memory on device (78.74/79.25 GiB) on startup. Desired GPU memory utilization is (0.85, 67.36 GiB). Actual usage is 15.27 GiB for weight, 1.31 GiB for peak activation, 0.29 GiB for non-torch memory, and 0.63 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with ` + "`--kv-cache-memory=53338963558` (49.68 GiB) to fit into requested memory, or `--kv-cache-memory=65557471232` (61.06 GiB)" + ` to fully utilize gpu memory. Current kv cache memory in use is 50.49 GiB.
`, "weights 15.3 GiB, outside PyTorch 297.0 MiB, activations 1.3 GiB, CUDA graphs 645.1 MiB, KV cache 50.5 GiB", `{"context_tokens":8192,"fraction":0.85}`},
	{"vLLM 0.33, one line", `(EngineCore pid=9) INFO 11-14 10:01:00 [kv_cache_utils.py:1147] GPU KV cache size: 464,656 tokens, Maximum concurrency for 8,192 tokens per request: 56.72x
(EngineCore pid=9) INFO 11-14 10:01:00 [gpu_worker.py:1003] CUDA graph pool memory: 0.61 GiB (actual), 0.58 GiB (estimated), difference: 0.03 GiB (4.9%).
`, "CUDA graphs 624.6 MiB", `{"context_tokens":8192,"requests":56.72,"tokens":464656}`},
	{"vLLM 0.6, Gaudi", "(VllmWorkerProcess pid=880) INFO 02-07 14:50:41 hpu_model_runner.py:712] Pre-loading model weights on hpu:0 took 79.41 GiB of device memory (79.41 GiB/94.62 GiB used) and 4.706 GiB of host memory (98.92 GiB/1007 GiB used)\n",
		"process 880 weights 79.4 GiB", `{}`},
	{"SGLang 0.3", `[14:02:11 TP0] Load weight begin. avail mem=78.64 GB
[14:02:15 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.54 GB
[14:02:15 TP0] Memory pool end. avail mem=8.37 GB
[14:02:25 TP0] max_total_num_tokens=442913, max_prefill_tokens=16384, max_running_requests=4097, context_len=131072
`, "TP0 weights 15.1 GiB", `{"context_tokens":131072,"max_requests":4097,"tokens":442913}`},
	{"SGLang 0.4, two ranks", `[2025-05-02 10:00:00 TP0] Init torch distributed ends. mem usage=0.41 GB
[2025-05-02 10:00:00 TP0] Load weight begin. avail mem=78.20 GB
[2025-05-02 10:00:00 TP1] Load weight begin. avail mem=78.20 GB
[2025-05-02 10:00:09 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70.60 GB, mem usage=7.60 GB.
[2025-05-02 10:00:09 TP1] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70.60 GB, mem usage=7.60 GB.
[2025-05-02 10:00:10 TP0] KV Cache is allocated. #tokens: 1000000, K size: 30.52 GB, V size: 30.52 GB
[2025-05-02 10:00:10 TP0] Memory pool end. avail mem=9.10 GB
[2025-05-02 10:00:11 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=8.55 GB
[2025-05-02 10:00:20 TP0] Capture cuda graph end. Time elapsed: 9.01 s. avail mem=7.20 GB. mem usage=1.35 GB.
[2025-05-02 10:00:20 TP0] max_total_num_tokens=1000000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=131072
`, "TP0 outside PyTorch 419.8 MiB, weights 7.6 GiB, KV cache 61.0 GiB, CUDA graphs 1.3 GiB; TP1 weights 7.6 GiB", `{"context_tokens":131072,"max_requests":2048,"tokens":1000000}`},
	{"SGLang 0.5, a hybrid with a draft", `[2026-03-01 10:00:00] server_args=ServerArgs(model_path='org/hybrid', tokenizer_path='org/hybrid', mem_fraction_static=0.82, tp_size=1)
[2026-03-01 10:00:00] Load weight begin. avail mem=78.00 GB
[2026-03-01 10:00:09] Load weight end. elapsed=9.00 s, type=Qwen3NextForCausalLM, avail mem=48.00 GB, mem usage=30.00 GB.
[2026-03-01 10:00:10] Mamba Cache is allocated. max_mamba_cache_size: 330, conv_state size: 0.70GB, ssm_state size: 24.00GB
[2026-03-01 10:00:10] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 200000, K size: 2.00 GB, V size: 2.00 GB
[2026-03-01 10:00:10] Memory pool end. avail mem=19.10 GB
[2026-03-01 10:00:11] Load weight begin. avail mem=19.00 GB
[2026-03-01 10:00:12] Load weight end. elapsed=1.00 s, type=Draft, avail mem=18.00 GB, mem usage=1.00 GB.
[2026-03-01 10:00:20] Capture target decode CUDA graph end. bs=[1, 2], elapsed=2.00 s, mem usage=0.50 GB, avail mem=17.00 GB.
[2026-03-01 10:00:20] Capture draft decode CUDA graph end. bs=[1, 2], elapsed=2.00 s, mem usage=0.25 GB, avail mem=16.75 GB.
[2026-03-01 10:00:21] max_total_num_tokens=200000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=66, context_len=262144, available_gpu_mem=16.60 GB
`, "weights 31.0 GiB, recurrent states 24.7 GiB, KV cache 4.0 GiB, CUDA graphs 768.0 MiB", `{"context_tokens":262144,"fraction":0.82,"max_requests":66,"tensor_parallel":1,"tokens":200000}`},
	{"SGLang, windows", `[2026-01-31 13:50:39 TP1] Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288
[2026-01-31 13:50:39 TP1] KV Cache is allocated. #tokens: 300288, K size: 8.38 GB, V size: 5.59 GB
[2026-01-31 13:50:39 TP1] KV Cache is allocated. #tokens: 375360, KV size: 3.43 GB
`, "TP1 KV cache 17.4 GiB", `{"tokens":375360}`},
	{"llama.cpp, early 2024", `main: build = 3187 (aaaaaaaa)
llm_load_print_meta: general.name     = some model
  Device 0: NVIDIA GeForce RTX 4070 Ti, compute capability 8.9, VMM: yes
llm_load_tensors: offloaded 41/41 layers to GPU
llm_load_tensors:        CPU buffer size =  1640.62 MiB
llm_load_tensors:      CUDA0 buffer size =  5434.38 MiB
llm_load_tensors:      CUDA1 buffer size = 13989.53 MiB
llama_new_context_with_model: n_ctx      = 4096
llama_kv_cache_init:      CUDA0 KV buffer size =  1536.00 MiB
llama_kv_cache_init:      CUDA1 KV buffer size =  3584.00 MiB
llama_new_context_with_model: KV self size  = 5120.00 MiB, K (f16): 2560.00 MiB, V (f16): 2560.00 MiB
llama_new_context_with_model:  CUDA_Host  output buffer size =     1.95 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   672.01 MiB
`, "CUDA0 weights 5.3 GiB, KV cache 1.5 GiB, compute buffers 672.0 MiB; CUDA1 weights 13.7 GiB, KV cache 3.5 GiB; CPU weights 1.6 GiB; CUDA_Host output buffer 1.9 MiB",
		`{"context_tokens":4096,"layers":41,"layers_on_device":41}`},
	{"llama.cpp, 2026, with a fit and a table at the end", `0.00.047.566 I common_params_print_info: build 9284 (aaaaaaaaa) with GNU 11.4.0 for Linux x86_64
0.00.050.000 I common_params_fit_impl: getting device memory data for initial parameters:
0.00.060.000 I common_memory_breakdown_print: |   - CUDA0 (L4)         | 22478 = 22169 + (17915 =  8045 +    8393 +    1476) +      -17606 |
0.00.060.000 I common_memory_breakdown_print: |   - Host               |                  1558 =  1030 +       0 +     528                |
0.00.060.000 I common_params_fit_impl: projected to use 17915 MiB of device memory vs. 22169 MiB of free device memory
0.00.100.000 I llama_model_loader: loaded meta data with 49 key-value pairs and 601 tensors from some.gguf (version GGUF V3 (latest))
0.01.100.000 I llama_model_load_from_file_impl: using device CUDA0 (NVIDIA L4) (0000:31:00.0) - 22169 MiB free
0.02.000.000 I load_tensors: offloaded 33/33 layers to GPU
0.02.000.000 I load_tensors:   CPU_Mapped model buffer size =  1030.31 MiB
0.02.000.000 I load_tensors:        CUDA0 model buffer size =  8045.06 MiB
0.02.500.000 I llama_context: n_seq_max             = 4
0.02.500.000 I llama_context: n_ctx                 = 262144
0.02.500.000 I llama_context:  CUDA_Host  output buffer size =     3.79 MiB
0.02.500.000 I llama_kv_cache:      CUDA0 KV buffer size =  8192.00 MiB
0.02.500.000 I llama_memory_recurrent:      CUDA0 RS buffer size =   201.00 MiB
0.02.600.000 I sched_reserve:      CUDA0 compute buffer size =  1400.00 MiB
0.02.700.000 I sched_reserve:      CUDA0 compute buffer size =  1476.02 MiB
9.00.000.000 I common_memory_breakdown_print: |   - CUDA0 (L4)         | 22478 =  4100 + (17914 =  8045 +    8393 +    1476) +         464 |
`, "CUDA0 weights 7.9 GiB, KV cache 8.0 GiB, recurrent states 201.0 MiB, compute buffers 1.4 GiB, unaccounted 464.0 MiB; CPU weights 1.0 GiB; CUDA_Host output buffer 3.8 MiB",
		`{"context_tokens":262144,"layers":33,"layers_on_device":33,"max_requests":4}`},
	{"ollama 0.11, what it expects", `time=2025-08-08T23:02:37.146+01:00 level=INFO source=server.go:175 msg=offload library=cuda layers.requested=49 layers.model=49 layers.offload=48 layers.split="" memory.available="[10.9 GiB 2.0 GiB]" memory.gpu_overhead="0 B" memory.required.full="14.0 GiB" memory.required.partial="8.5 GiB" memory.required.kv="608.0 MiB" memory.required.allocations="[8.5 GiB]" memory.weights.total="6.8 GiB" memory.weights.repeating="6.0 GiB" memory.weights.nonrepeating="787.5 MiB" memory.graph.full="519.5 MiB" memory.graph.partial="1.3 GiB" projector.weights="795.9 MiB" projector.graph="1.0 GiB"
time=2025-08-08T23:02:37.187+01:00 level=INFO source=server.go:438 msg="starting llama server" cmd="/usr/bin/ollama runner --model x --parallel 1"
`, "KV cache 608.0 MiB*, weights 6.8 GiB*, compute buffers 519.5 MiB*, projector 795.9 MiB*", `{"layers":49,"layers_on_device":48}`},
	{"ollama 0.10", `time=2025-07-18T14:50:57.066Z level=INFO source=ggml.go:362 msg="offloaded 41/41 layers to GPU"
time=2025-07-18T14:50:57.066Z level=INFO source=ggml.go:365 msg="model weights" buffer=CUDA0 size="11.5 GiB"
time=2025-07-18T14:50:57.066Z level=INFO source=ggml.go:365 msg="model weights" buffer=CPU size="680.0 MiB"
time=2025-07-18T14:50:58.130Z level=INFO source=ggml.go:672 msg="compute graph" backend=CUDA0 buffer_type=CUDA0 size="1.1 GiB"
`, "CUDA0 weights 11.5 GiB, compute buffers 1.1 GiB; CPU weights 680.0 MiB", `{"layers":41,"layers_on_device":41}`},
	{"ollama 0.17", `time=2026-02-12T10:00:00.000Z level=INFO source=routes.go:1 msg="Listening on 127.0.0.1:11434 (version 0.17.4)"
time=2026-02-12T10:00:01.000Z level=INFO source=types.go:42 msg="inference compute" id=GPU-1 filter_id="" library=CUDA compute=8.9 name=CUDA0 description="NVIDIA L4" libdirs=ollama,cuda_v13 driver=13.0 pci_id=0000:31:00.0 type=discrete total="22.0 GiB" available="21.7 GiB"
time=2026-02-12T10:00:02.000Z level=INFO source=server.go:431 msg="starting runner" cmd="/usr/bin/ollama runner --ollama-engine --port 1"
time=2026-02-12T10:00:02.100Z level=INFO source=runner.go:1411 msg="starting ollama engine"
time=2026-02-12T10:00:02.200Z level=INFO source=runner.go:1295 msg=load request="{Operation:commit LoraPath:[] Parallel:1 BatchSize:512 FlashAttention:Enabled KvSize:8192 KvCacheType: NumThreads:2 GPULayers:35[ID:GPU-1 Layers:35(0..34)] MultiUserCache:false ProjectorPath: MainGPU:0 UseMmap:false}"
time=2026-02-12T10:00:03.000Z level=INFO source=device.go:240 msg="model weights" device=CUDA0 size="3.1 GiB"
time=2026-02-12T10:00:03.000Z level=INFO source=device.go:245 msg="model weights" device=CPU size="1.0 GiB"
time=2026-02-12T10:00:03.000Z level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="396.0 MiB"
time=2026-02-12T10:00:03.000Z level=INFO source=device.go:262 msg="compute graph" device=CUDA0 size="1.1 GiB"
`, "CUDA0 weights 3.1 GiB, KV cache 396.0 MiB, compute buffers 1.1 GiB; CPU weights 1.0 GiB", `{"context_tokens":8192,"max_requests":1}`},
	{"TensorRT-LLM 0.8", `[TensorRT-LLM][INFO] [MemUsageChange] TensorRT-managed allocation in IExecutionContext creation: CPU +0, GPU +0, now: CPU 0, GPU 6683 (MiB)
[TensorRT-LLM][INFO] Allocate 69524783104 bytes for k/v cache. 
[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.
`, "weights 6.5 GiB, KV cache 64.8 GiB", `{"tokens":132608}`},
	{"TensorRT-LLM 0.17", `[TensorRT-LLM][INFO] Loaded engine size: 6695 MiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1134.01 MiB for execution context memory.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 43.29 MB GPU memory for runtime buffers.
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, available: 70.49 GiB
[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 64 [window size=4096], tokens per block=64, primary blocks=2030, secondary blocks=0, max sequence length=4096
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 63.44 GiB for max tokens in paged KV cache (129920).
`, "weights 6.5 GiB, activations 1.1 GiB, compute buffers 43.3 MiB, KV cache 63.4 GiB", `{"blocks":2030,"context_tokens":4096,"tokens":129920}`},
	{"TensorRT-LLM 1.0, PyTorch", `[12/20/2025-04:21:50] [TRT-LLM] [RANK 0] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 63.52 GiB
[12/20/2025-04:21:51] [TRT-LLM] [RANK 0] [I] Memory dynamically allocated during inference (inside torch) in memory usage profiling: 0.85 GiB
[12/20/2025-04:21:51] [TRT-LLM] [RANK 0] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: 9.28 GiB
[12/20/2025-04:21:51] [TRT-LLM] [RANK 0] [I] Peak memory during memory usage profiling (torch + non-torch): 73.65 GiB, available KV cache memory when calculating max tokens: 41.95 GiB, fraction is set 0.9, kv size is 73728. device total memory 119.70 GiB, , tmp kv_mem 0.56 GiB
`, "rank 0 weights 63.5 GiB, activations 870.4 MiB, outside PyTorch 9.3 GiB, KV cache 42.0 GiB*", `{"fraction":0.9}`},
	{"torchtitan", `[rank0]:[titan] 2025-05-01 10:00:00,000 - root - INFO - CUDA capacity: NVIDIA H100 with 79.10GiB memory
[rank0]:[titan] 2025-05-01 10:00:01,000 - root - INFO - CUDA memory usage for model: 7.53GiB(9.52%)
[rank0]:[titan] 2025-05-01 10:00:09,000 - root - INFO - ` + "\x1b[31mstep:  1  \x1b[32mloss: 12.2  \x1b[38;2;54;234;195mmemory: 38.11GiB(48.18%)  \x1b[34mtps: 700\x1b[39m" + `
`, "rank 0 weights 7.5 GiB", `{}`},
}

func TestLogs(t *testing.T) {
	for _, log := range logs {
		t.Run(log.name, func(t *testing.T) {
			reports := read(t, log.text)
			require.Len(t, reports, 1)
			r := reports[0]
			assert.Equal(t, log.said, said(r))
			assert.Equal(t, log.fits, fits(r.Capacity))
			assert.Nil(t, r.Failure)
			assert.Empty(t, r.Notes)
			engine, _, _ := strings.Cut(log.name, ",")
			assert.True(t, strings.HasPrefix(engine, string(r.Engine)), r.Engine)
			assert.Equal(t, inputs.EngineLog, inputs.For("show", []byte(log.text)), "the table of inputs knows such a log")
			windows := read(t, "noise\n"+strings.ReplaceAll(log.text, "\n", "\r\n"))
			assert.Equal(t, log.said, said(windows[0]), "with the ends of lines of Windows")
			if !strings.Contains(log.text, "\t") {
				var wrapped strings.Builder
				for line := range strings.Lines(log.text) {
					require.NoError(t, json.NewEncoder(&wrapped).Encode(map[string]string{"log": line, "stream": "stderr"}))
				}
				assert.Equal(t, log.said, said(read(t, wrapped.String())[0]), "in JSON lines, as of Docker")
			}
		})
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"vLLM 0.8, V0, two workers": "0.8.3 org/model", "vLLM 0.11, three ranks": "0.11.0 org/model", "vLLM 0.25, the advice at the end": "0.25.0 org/model",
		"SGLang 0.5, a hybrid with a draft": " org/hybrid", "llama.cpp, early 2024": "3187 some model", "llama.cpp, 2026, with a fit and a table at the end": "9284 ", "ollama 0.17": "0.17.4 ",
	} {
		for _, log := range logs {
			if log.name == name {
				r := read(t, log.text)[0]
				assert.Equal(t, want, r.Version+" "+r.Model, name)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	for name, want := range map[string]string{
		"vLLM 0.6.4": "23.6 GiB ? 21.2 GiB ?", "vLLM 0.14, debug": "? 78.7 GiB 71.3 GiB 62.4 GiB", "vLLM 0.25, the advice at the end": "79.2 GiB 78.7 GiB 67.4 GiB ?",
		"SGLang 0.5, a hybrid with a draft": "? 78.0 GiB ? 16.6 GiB", "llama.cpp, 2026, with a fit and a table at the end": "22.0 GiB 21.6 GiB ? 4.0 GiB", "ollama 0.17": "22.0 GiB ? ? ?",
		"TensorRT-LLM 0.17": "79.1 GiB ? ? 70.5 GiB", "torchtitan": "79.1 GiB ? ? ?",
	} {
		for _, log := range logs {
			if log.name == name {
				assert.Equal(t, want, limits(read(t, log.text)[0].Devices[0]), name)
			}
		}
	}
}

// TestFailures: what lacked, and what would help first.
func TestFailures(t *testing.T) {
	for text, want := range map[string]string{
		"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.":                                                                                                                                                    "no memory is left for the KV cache | KV cache | ? ? | ? ? | Raise --gpu-memory-utilization",
		"Available KV cache memory: -2.50 GiB\nFree memory after\nValueError: No available memory for the cache blocks.":                                                                                                                                                                 "no memory is left for the KV cache | KV cache | ? ? | ? ? | Raise --gpu-memory-utilization",
		"ValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV cache (23648). Try":                                                                                                                                            "one request of the whole context length does not fit into the KV cache | KV cache | ? ? | 29000 23648 | Shorten the context length: --max-model-len 23648.",
		"ValueError: To serve at least one request with the models's max seq len (262144), (36.0 GiB KV cache is needed, which is larger than the available KV cache memory (6.94 GiB). Based on the available memory, the estimated maximum model length is 50512. Try":                 "one request of the whole context length does not fit into the KV cache | KV cache | 36.0 GiB 6.9 GiB | 262144 50512 | Shorten the context length: --max-model-len 50512.",
		"(EngineCore pid=3) ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cach\ne is needed, which is larger than the available KV cache memory (4.25 GiB). Based on the available memory, the estimated maximum model length is 99616.": "one request of the whole context length does not fit into the KV cache | KV cache | 4.3 GiB 4.2 GiB | 100000 99616 | Shorten the context length: --max-model-len 99616.",
		"ValueError: Free memory on device (31.44/47.38 GiB) on startup is less than desired GPU memory utilization (0.95, 45.01 GiB). Decrease":                                                                                                                                         "less memory is free than the engine is told to take |  | 45.0 GiB 31.4 GiB | ? ? | Stop the other process",
		"AssertionError: Error in memory profiling. Initial free memory 25091964928, current free memory 25593184256. This":                                                                                                                                                              "another process released memory while the engine measured its own |  | 23.8 GiB 23.4 GiB | ? ? | Start again",
		"AssertionError: Error in memory profiling. Initial free memory 20.5 GiB, current free memory 21.0 GiB. This":                                                                                                                                                                    "another process released memory while the engine measured its own |  | 21.0 GiB 20.5 GiB | ? ? | Start again",
		"RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try":                                                                                                                                                                         "the device refused an allocation | activations | ? ? | ? ? | Lower --max-num-seqs",
		"ValueError: Failed to load model - not enough GPU memory. Try lowering":                                                                                                                                                                                                         "the device refused an allocation | weights | ? ? | ? ? | Divide the weights",
		"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current":                                                                                                                                                                                         "no memory is left for the KV cache | KV cache | ? ? | ? ? | Raise --mem-fraction-static",
		"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.88.":                                                                                                                                                                              "no memory is left for the KV cache | KV cache | ? ? | ? ? | Raise --mem-fraction-static",
		"ggml_backend_cuda_buffer_type_alloc_buffer: allocating 14136.04 MiB on device 0: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 14822711296\ngraph_reserve: failed to allocate compute buffers\nllama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers":     "the device refused an allocation | compute buffers CUDA0 | 13.8 GiB ? | ? ? | Switch flash attention on",
		"ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2048.00 MiB on device 0: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate ROCm0 buffer of size 2147483648\nllama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache":                                                             "the device refused an allocation | KV cache ROCm0 | 2.0 GiB ? | ? ? | Shorten the context: -c N.",
		"ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5000.00 MiB on device 1: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate CUDA1 buffer of size 5242880000\nllama_model_load: error loading model: unable to allocate CUDA1 buffer":                                                                                      "the device refused an allocation | weights CUDA1 | 4.9 GiB ? | ? ? | Put fewer layers",
		"ggml_vulkan: Device memory allocation of size 2221155856 failed.\nggml_vulkan: Requested buffer size exceeds device memory allocation limit: ErrorOutOfDeviceMemory\nggml_gallocr_reserve_n: failed to allocate Vulkan1 buffer of size 2221155856\ngraph_reserve: failed to allocate compute buffers\nllama_init_from_model: failed to initialize the": "one buffer is larger than the driver allows | compute buffers Vulkan1 | 2.1 GiB ? | ? ? | Memory may be free",
	} {
		reports := read(t, text+"\n")
		require.Len(t, reports, 1, text)
		f := reports[0].Failure
		require.NotNil(t, f, text)
		var values []any
		for _, n := range []*alloc.Bytes{f.Needs, f.Has} {
			values = append(values, orUnknown(n))
		}
		for _, n := range []*int64{f.Tokens, f.Fits} {
			values = append(values, orUnknown(n))
		}
		got := fmt.Sprintf("%s | %s | %v %v | %v %v | ", f.Reason, strings.TrimSpace(string(f.Of)+" "+f.Device), values[0], values[1], values[2], values[3])
		require.NotEmpty(t, reports[0].Advice(), text)
		assert.True(t, strings.HasPrefix(got+reports[0].Advice()[0], want), "%s\n got %s\nwant %s", text, got+reports[0].Advice()[0], want)
	}
}

func orUnknown[T any](n *T) any {
	if n == nil {
		return "?"
	}
	return *n
}

// TestOneMoreStart: a server that was started again has a report for each start, and a draft model does not.
func TestOneMoreStart(t *testing.T) {
	for _, log := range logs {
		if strings.HasPrefix(log.name, "TensorRT") || strings.HasPrefix(log.name, "torch") || log.name == "vLLM 0.6.5, a table" || log.name == "vLLM 0.33, one line" ||
			log.name == "vLLM 0.14, debug" || log.name == "SGLang, windows" || log.name == "vLLM 0.6, Gaudi" || log.name == "ollama 0.10" {
			continue // nothing in these says that they begin
		}
		reports := read(t, log.text+log.text)
		require.Len(t, reports, 2, log.name)
		for _, r := range reports {
			assert.Equal(t, log.said, said(r), log.name)
		}
	}
}

// TestAnotherProcess: memory that another process took while vLLM measured itself.
func TestAnotherProcess(t *testing.T) {
	for text, want := range map[string]string{
		"Free memory on device (78.74/79.25 GiB) on startup. Desired GPU memory utilization is (0.9, 71.3 GiB). Actual usage is 15.27 GiB for weight, 1.31 GiB for peak activation, 22.8 GiB for non-torch memory, and 0.63 GiB for CUDAGraph memory. Replace":                                         "22.8 GiB were taken outside PyTorch while vLLM measured itself. CUDA's context and NCCL take less than 4.0 GiB: the rest went to another process on the device.",
		"Model loading took 15.0 GiB and 3 seconds\nInitial free memory: 78.74 GiB; Requested memory: 0.900000 (util), 71.3 GiB\nFree memory after profiling: 40.4 GiB (total), 33 GiB (within requested)\n":                                                                                           "While vLLM loaded and measured itself the device lost 23.3 GiB more than the weights: to another process on the device.",
		"(Worker_TP1 pid=3) INFO total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90) = 71.30GiB\n(Worker_TP1 pid=3) INFO model weights take 15.00GiB; non_torch_memory takes 0.50GiB; PyTorch activation peak memory takes 1.00GiB; the rest of the memory reserved for KV Cache is 40.00GiB.": "TP1: 14.8 GiB of the 71.3 GiB that vLLM may take are in none of its parts: another process on the device took them meanwhile.",
		"[2025-05-02 10:00:09 TP0] Load weight end. type=X, avail mem=70.60 GB, mem usage=7.60 GB.\n[2025-05-02 10:00:10 TP0] KV Cache is allocated. #tokens: 1000000, K size: 10.00 GB, V size: 10.00 GB\n[2025-05-02 10:00:10 TP0] Memory pool end. avail mem=39.60 GB\n":                            "TP0: While the KV cache was allocated 11.0 GiB more went than it has: another process on the device, or buffers that the log does not name.",
	} {
		assert.Equal(t, []string{want}, read(t, text)[0].Notes)
	}
}

func TestTraining(t *testing.T) {
	r := read(t, `[2026-02-22 14:30:20,080] [INFO] [utils.py:831:see_memory_usage] before forward 0
[2026-02-22 14:30:21,080] [INFO] [utils.py:832:see_memory_usage] MA 0.0 GB         Max_MA 55.83 GB         CA 55.83 GB         Max_CA 56 GB
[2026-02-22 14:30:21,080] [INFO] [utils.py:839:see_memory_usage] CPU Virtual Memory:  used = 5.5 GB, percent = 8.7%
`)[0]
	require.Len(t, r.Moments, 1)
	assert.Equal(t, "before forward 0", r.Moments[0].Label)
	assert.Equal(t, "0 B 55.8 GiB 55.8 GiB 56.0 GiB", fmt.Sprintf("%v %v %v %v", *r.Moments[0].Allocated, *r.Moments[0].PeakAllocated, *r.Moments[0].Reserved, *r.Moments[0].PeakReserved))
	r = read(t, "INFO:torchtune.utils._logging:Memory stats after model init:\n\tCUDA peak memory allocation: 1.58 GiB\n\tCUDA peak memory reserved: 1.61 GiB\n\tCUDA peak memory active: 1.56 GiB\n")[0]
	require.Len(t, r.Moments, 1)
	assert.Equal(t, "Memory stats after model init 1.6 GiB 1.6 GiB 1.6 GiB", fmt.Sprintf("%s %v %v %v", r.Moments[0].Label, *r.Moments[0].PeakAllocated, *r.Moments[0].PeakReserved, *r.Moments[0].PeakActive))
	r = read(t, `Estimated memory needed for params, optim states and gradients for a:
HW: Setup with 1 node, 8 GPUs per node.
SW: Model with 2851M total params, 32M largest layer params.
  per CPU  |  per GPU |   Options
   71.71GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1
    0.72GB |   6.09GB | offload_param=none, offload_optimizer=none, zero_init=1
   15.93GB |   5.31GB | offload_optimizer=cpu
`)[0]
	require.Len(t, r.Plans, 3)
	assert.Equal(t, "offload_param=cpu, offload_optimizer=cpu, zero_init=1 71.7 GiB 122.9 MiB", fmt.Sprintf("%s %v %v", r.Plans[0].Options, r.Plans[0].CPU, r.Plans[0].GPU))
	var steps strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&steps, "[rank1]: step: %d loss: 1 memory: %d.00GiB(1%%) tps: 1\n", i, i%2000)
	}
	r = read(t, steps.String())[0]
	assert.Len(t, r.Moments, 1000)
	assert.Equal(t, "step 1999 rank 1 1999.0 GiB", strings.Replace(fmt.Sprintf("%s %s %v", r.Moments[999].Label, r.Moments[999].Device, *r.Moments[999].PeakReserved), "2.0 TiB", "1999.0 GiB", 1))
}

// TestHostile: what no engine prints takes little memory and is not believed.
func TestHostile(t *testing.T) {
	digits := strings.Repeat("9", 400)
	for name, text := range map[string]string{
		"400 digits":        "Model loading took " + digits + " GiB\nGPU KV cache size: " + digits + " tokens\nMaximum concurrency for " + digits + " tokens per request: " + digits + "x\n",
		"no such unit":      "Model loading took 5 XiB\nKV buffer size = 3 QiB\nAvailable KV cache memory: 5 G\n",
		"not a number":      "Model loading took NaN GiB\nAvailable KV cache memory: -- GiB\nModel loading took 1.2.3.4 GiB\n",
		"control":           "\x00\x01\x02Model loading took\x1b[31m\x00 5 GiB\nllama_kv_cache: \x1b]0;x\x07 KV buffer size = \x08 MiB\n",
		"only a word":       "KV buffer size\nModel loading took\nKV Cache is allocated.\nlayers.offload=\nlevel\n",
		"a line of a words": strings.Repeat("KV buffer size = Model loading took Capture graph end. mem usage= | - (", 1<<12),
	} {
		reports, err := enginelog.Read(strings.NewReader(text))
		for _, r := range reports {
			for _, d := range r.Devices {
				for _, row := range d.Rows {
					assert.LessOrEqual(t, row.Bytes, alloc.Bytes(1)<<50, name)
				}
			}
			assert.Nil(t, r.Capacity.Tokens, name)
		}
		if name != "not a number" {
			assert.ErrorIs(t, err, enginelog.ErrNoEngine, name)
		}
	}
	_, err := enginelog.Read(strings.NewReader(""))
	assert.ErrorIs(t, err, enginelog.ErrNoEngine)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err = zip.Write([]byte(logs[0].text))
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	reports, err := enginelog.Read(bytes.NewReader(packed.Bytes()))
	require.NoError(t, err)
	assert.Equal(t, logs[0].said, said(reports[0]))
	_, err = enginelog.Read(bytes.NewReader(packed.Bytes()[:packed.Len()-9]))
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// endless gives lines until so many bytes were read.
type endless struct {
	line func(n int) string
	rest string
	n    int
	left int64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	if e.rest == "" {
		e.n++
		e.rest = e.line(e.n)
	}
	n := copy(p, e.rest)
	e.rest, e.left = e.rest[n:], e.left-int64(n)
	return n, nil
}

// TestMemory: a long log takes no more memory than a short one, also one of a million ranks, or of one line.
func TestMemory(t *testing.T) {
	for name, line := range map[string]func(int) string{
		"ranks": func(n int) string {
			return fmt.Sprintf("(Worker_TP%d pid=%d) INFO Model loading took 7.6 GiB and 3 seconds\n", n, n)
		},
		"starts": func(int) string { return logs[3].text },
		"steps":  func(n int) string { return fmt.Sprintf("[rank1]: step: %d loss: 1 memory: 2.00GiB(1%%) tps: 1\n", n) },
		"line":   func(int) string { return "llama_kv_cache: CUDA0 KV buffer size = 5 MiB " },
		"noise":  func(int) string { return "step 1 of 2, nothing to see here\n" },
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			reports, err := enginelog.Read(&endless{line: line, left: 8 << 20})
			runtime.GC()
			runtime.ReadMemStats(&after)
			if name != "noise" {
				require.NoError(t, err)
				assert.LessOrEqual(t, len(reports), 256)
				assert.LessOrEqual(t, len(reports[0].Devices), enginelog.MaxDevices)
			}
			assert.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(8<<20))
			runtime.KeepAlive(reports)
		})
	}
}

func FuzzRead(f *testing.F) {
	for _, log := range logs {
		f.Add(log.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		reports, err := enginelog.Read(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, r := range reports {
			r.Advice()
			_, err := json.Marshal(r)
			require.NoError(t, err)
			assert.LessOrEqual(t, len(r.Devices), enginelog.MaxDevices)
		}
	})
}

package enginelog

import "regexp"

// tensorrtPatterns are the lines of TensorRT-LLM 0.8 to 1.2: of its C++ runtime, and of its PyTorch backend.
func tensorrtPatterns() []pattern {
	on := func(has, re string, take func(s *scanner, r *Report, d *Device, m []string)) pattern {
		return say(TensorRTLLM, has, re, func(s *scanner, m []string) {
			r := s.report(TensorRTLLM)
			take(s, r, r.device(tensorrtRank(s.text)), m)
		})
	}
	part := func(has, re string, of Part) pattern {
		return on(has, re, func(_ *scanner, _ *Report, d *Device, m []string) { d.put(of, size(m[1], m[2])) })
	}
	return []pattern{
		say(TensorRTLLM, "TensorRT-LLM version", `TensorRT-LLM version: (\S{1,40})`, func(s *scanner, m []string) {
			if r := s.report(TensorRTLLM); len(r.Devices) > 0 {
				s.begin(TensorRTLLM)
			}
			s.now.Version = m[1]
		}),
		// cpp/tensorrt_llm/runtime/tllmRuntime.cpp; of several ranks each prints its lines, without its number in old releases
		part("Loaded engine size", `TensorRT-LLM\].*Loaded engine size: SIZE`, Weights),
		on("TensorRT-managed", `TensorRT-LLM\].*TensorRT-managed allocation in .*now: CPU \d+, GPU NUM \(MiB\)`, func(_ *scanner, _ *Report, d *Device, m []string) {
			if !has(d, Weights) {
				d.put(Weights, size(m[1], "MiB"))
			}
		}),
		part("execution context memory", `Allocated SIZE for execution context memory`, Activations),
		// cpp/tensorrt_llm/batch_manager
		on("runtime buffers", `Allocated SIZE GPU memory for runtime buffers`, func(_ *scanner, _ *Report, d *Device, m []string) { d.put(Compute, size(m[1], m[2])) }),
		on("paged KV cache", `Allocated SIZE for max tokens in paged KV cache \(NUM\)`, func(_ *scanner, r *Report, d *Device, m []string) {
			d.put(Cache, size(m[1], m[2]))
			keep(&r.Capacity.Tokens, count(m[3]))
		}),
		part("k/v cache", `Allocate SIZE for k/v cache`, Cache),
		say(TensorRTLLM, "paged KV cache", `Using NUM tokens in paged KV cache`, func(s *scanner, m []string) { keep(&s.report(TensorRTLLM).Capacity.Tokens, count(m[1])) }),
		say(TensorRTLLM, "primary blocks", `primary blocks=NUM,.*max sequence length=NUM`, func(s *scanner, m []string) {
			c := &s.report(TensorRTLLM).Capacity
			keep(&c.Blocks, count(m[1]))
			keep(&c.Context, count(m[2]))
		}),
		on("paged kv cache", `Memory usage when calculating max tokens in paged kv cache: total: SIZE, available: SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) {
			keep(&d.Total, size(m[1], m[2]))
			keep(&d.Left, size(m[3], m[4]))
		}),
		// tensorrt_llm/_torch/pyexecutor/_util.py since 0.18
		part("after loading model weights", `Memory used after loading model weights \(inside torch\) in memory usage profiling: SIZE`, Weights),
		part("dynamically allocated", `Memory dynamically allocated during inference \(inside torch\) in memory usage profiling: SIZE`, Activations),
		part("outside torch", `Memory used outside torch \(e\.g\., NCCL and CUDA graphs\) in memory usage profiling: SIZE`, Outside),
		on("Peak memory during", `Peak memory during memory usage profiling .*available KV cache memory when calculating max tokens: SIZE(?:, fraction is set NUM)?`,
			func(_ *scanner, r *Report, d *Device, m []string) {
				d.plan(Cache, size(m[1], m[2]))
				keep(&r.Capacity.Fraction, fraction(m[3]))
			}),
		on("device total memory", `device total memory SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { keep(&d.Total, size(m[1], m[2])) }),
		on("Estimated max memory", `Estimated max memory in KV cache ?: SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { d.plan(Cache, size(m[1], m[2])) }),
	}
}

var tensorrtPrefix = regexp.MustCompile(`\[RANK (\d{1,6})\]`)

// tensorrtRank returns the rank that a line names, "" if it names none.
func tensorrtRank(line string) string {
	if m := tensorrtPrefix.FindStringSubmatch(line[:min(len(line), 512)]); m != nil {
		return "rank " + m[1]
	}
	return ""
}

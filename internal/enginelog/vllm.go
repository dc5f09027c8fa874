package enginelog

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// vllmPatterns are the lines of vLLM 0.6 to 0.33. Sizes are in units of 1024, also where it says GB.
func vllmPatterns() []pattern {
	return slices.Concat(vllmStart(), vllmV0(), vllmV1(), vllmCache(), vllmErrors())
}

// onVLLM makes a pattern of a line about one rank.
func onVLLM(has, re string, take func(s *scanner, r *Report, d *Device, m []string)) pattern {
	return say(VLLM, has, re, func(s *scanner, m []string) {
		r := s.report(VLLM)
		take(s, r, r.device(vllmRank(s.text)), m)
	})
}

// vllmStart is the configuration and the weights.
func vllmStart() []pattern {
	return []pattern{
		// vllm/engine/llm_engine.py of 0.6 to 0.9, vllm/v1/engine/core.py since 0.7.
		say(VLLM, "LLM engine", `Initializing an? (?:V[01] )?LLM engine(?: \(v([^)]{1,60})\))? with config: .*?model='([^']+)'`, func(s *scanner, m []string) {
			r := vllmBegins(s)
			r.Version, r.Model = m[1], m[2]
			vllmConfig(r, s.text)
		}),
		say(VLLM, "vLLM API server version", `vLLM API server version (\S{1,60})`, func(s *scanner, m []string) { vllmBegins(s).Version = m[1] }),
		// vllm/entrypoints/utils.py: a banner of 0.14 and later.
		say(VLLM, "█  version", `█  version (\d[^\s]{1,60})`, func(s *scanner, m []string) { vllmBegins(s).Version = m[1] }),
		say(VLLM, "non-default args", `non-default args: \{`, func(s *scanner, _ []string) { vllmConfig(s.report(VLLM), s.text) }),
		say(VLLM, "args: Namespace", `args: Namespace\(`, func(s *scanner, _ []string) { vllmConfig(s.report(VLLM), s.text) }),
		// vllm/worker/model_runner.py of 0.6 to 0.9, vllm/v1/worker/gpu_model_runner.py since 0.7.
		say(VLLM, "Loading model weights took", `Loading model weights took SIZE`, vllmLoaded),
		say(VLLM, "Model loading took", `Model loading took SIZE`, vllmLoaded),
		// vllm/worker/hpu_model_runner.py, of Gaudi
		onVLLM("Pre-loading model weights", `Pre-loading model weights on \S+ took SIZE of device memory \(SIZE/SIZE used\)`, func(_ *scanner, _ *Report, d *Device, m []string) {
			d.put(Weights, size(m[1], m[2]))
			keep(&d.Total, size(m[5], m[6]))
		}),
	}
}

// vllmV0 is what the V0 engine measured.
func vllmV0() []pattern {
	return []pattern{
		// vllm/worker/worker.py of 0.6.4.
		onVLLM("Memory profiling results", `total_gpu_memory=SIZE initial_memory_usage=\S+ peak_torch_memory=SIZE .*non_torch_memory=SIZE kv_cache_size=SIZE gpu_memory_utilization=NUM`,
			func(_ *scanner, r *Report, d *Device, m []string) {
				keep(&d.Total, size(m[1], m[2]))
				if peak, weights := size(m[3], m[4]), d.value(Weights); peak != nil && weights != nil {
					d.set(Activations, *peak-*weights, false)
				}
				d.put(Outside, size(m[5], m[6]))
				d.put(Cache, size(m[7], m[8]))
				takeFraction(r, d, fraction(m[9]))
			}),
		// vllm/worker/worker.py of 0.6.5 to 0.9; a table with tabs in 0.6.5.
		onVLLM("total_gpu_memory", `total_gpu_memory \(SIZE\) x gpu_memory_utilization \(NUM\) = SIZE`, func(_ *scanner, r *Report, d *Device, m []string) {
			keep(&d.Total, size(m[1], m[2]))
			keep(&r.Capacity.Fraction, fraction(m[3]))
			keep(&d.Limit, size(m[4], m[5]))
		}),
		onVLLM("total_gpu_memory", `total_gpu_memory\s+SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { keep(&d.Total, size(m[1], m[2])) }),
		onVLLM("gpu_memory_utilization", `\] gpu_memory_utilization\s+NUM$`, func(_ *scanner, r *Report, _ *Device, m []string) { keep(&r.Capacity.Fraction, fraction(m[1])) }),
		onVLLM("instance can use", `the current vLLM instance can use\s+SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { keep(&d.Limit, size(m[1], m[2])) }),
		onVLLM("model weights take", `model weights take\s+SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { d.put(Weights, size(m[1], m[2])) }),
		onVLLM("non_torch_memory", `non_torch_memory(?: takes)?\s+SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { d.put(Outside, size(m[1], m[2])) }),
		onVLLM("activation peak", `PyTorch activation peak memory(?: takes)?\s+SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) {
			d.put(Activations, size(m[1], m[2]))
		}),
		onVLLM("KV Cache is", `the rest of the memory reserved for KV Cache is\s+SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { d.put(Cache, size(m[1], m[2])) }),
		onVLLM("available_kv_cache", `available_kv_cache_memory\s+SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { d.put(Cache, size(m[1], m[2])) }),
	}
}

// vllmV1 is what the V1 engine measured.
func vllmV1() []pattern {
	return []pattern{
		// vllm/v1/worker/gpu_worker.py since 0.9.
		onVLLM("Available KV cache", `Available KV cache memory: SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { d.put(Cache, size(m[1], m[2])) }),
		onVLLM("Initial free memory", `Initial free memory: SIZE[;,] .*?([0-9.]+) \(util\), SIZE`, func(_ *scanner, r *Report, d *Device, m []string) {
			keep(&d.Free, size(m[1], m[2]))
			keep(&r.Capacity.Fraction, fraction(m[3]))
			keep(&d.Limit, size(m[4], m[5]))
		}),
		onVLLM("Free memory after", `Free memory after profiling: SIZE \(total\)`, func(_ *scanner, _ *Report, d *Device, m []string) { keep(&d.Left, size(m[1], m[2])) }),
		onVLLM("torch peak memory", `torch peak memory increase: SIZE;(?: non-torch forward increase memory: SIZE;)?`, func(_ *scanner, _ *Report, d *Device, m []string) {
			d.put(Activations, size(m[1], m[2]))
			if m[4] != "" {
				d.put(Outside, size(m[3], m[4]))
			}
		}),
		onVLLM("Actual usage", `Free memory on device \(NUM/NUM GiB\) on startup\. Desired GPU memory utilization is \(NUM, SIZE\)\. Actual usage(?: is|:) SIZE for (weights?|consumed memory [^,]*), SIZE for peak activation,(?: SIZE for non-torch memory,)?(?: and)? SIZE for (?:CUDAGraph|NPU graph) memory`,
			func(_ *scanner, r *Report, d *Device, m []string) {
				keep(&d.Free, size(m[1], "GiB"))
				keep(&d.Total, size(m[2], "GiB"))
				keep(&r.Capacity.Fraction, fraction(m[3]))
				keep(&d.Limit, size(m[4], m[5]))
				if strings.HasPrefix(m[8], "weight") {
					d.put(Weights, size(m[6], m[7]))
					d.put(Outside, size(m[11], m[12]))
				} else if all, weights := size(m[6], m[7]), d.value(Weights); all != nil && weights != nil {
					d.set(Outside, *all-*weights, false)
				}
				d.put(Activations, size(m[9], m[10]))
				d.put(Graphs, size(m[13], m[14]))
			}),
		onVLLM("kv cache memory in use", `Current kv cache memory in use is SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { d.put(Cache, size(m[1], m[2])) }),
	}
}

// vllmCache is graphs, and what fits.
func vllmCache() []pattern {
	return []pattern{
		// vllm/v1/worker/gpu_model_runner.py; the estimate since 0.18.
		onVLLM("Graph capturing", `Graph capturing finished in NUM secs, took SIZE`, func(_ *scanner, _ *Report, d *Device, m []string) { d.put(Graphs, size(m[2], m[3])) }),
		onVLLM("Estimated CUDA graph", `Estimated CUDA graph memory: SIZE total`, func(_ *scanner, _ *Report, d *Device, m []string) { d.plan(Graphs, size(m[1], m[2])) }),
		onVLLM("graph pool memory", `CUDA graph pool memory: SIZE \(actual\)`, func(_ *scanner, _ *Report, d *Device, m []string) { d.put(Graphs, size(m[1], m[2])) }),
		// vllm/executor/executor_base.py of 0.6 to 0.9, vllm/v1/core/kv_cache_utils.py.
		say(VLLM, " blocks: ", `\b\w+ blocks: NUM`, func(s *scanner, m []string) { least(&s.report(VLLM).Capacity.Blocks, count(m[1])) }),
		say(VLLM, "KV cache size:", `KV cache size: NUM tokens`, func(s *scanner, m []string) { least(&s.report(VLLM).Capacity.Tokens, count(m[1])) }),
		say(VLLM, "Maximum concurrency", `Maximum concurrency for NUM tokens per request: NUMx`, func(s *scanner, m []string) {
			c := &s.report(VLLM).Capacity
			keep(&c.Context, count(m[1]))
			if n := fraction(m[2]); n != nil && (c.Requests == nil || *n < *c.Requests) {
				c.Requests = n
			}
		}),
		say(VLLM, "Auto-fit", `Auto-fit max_model_len: reduced from NUM to NUM`, func(s *scanner, m []string) {
			r := s.report(VLLM)
			keep(&r.Capacity.Context, count(m[2]))
			r.note("vLLM shortened the context length from %s to %s tokens, so that one request fits.", m[1], m[2])
		}),
	}
}

// vllmErrors is the errors that end a start.
func vllmErrors() []pattern {
	return []pattern{
		// The errors: vllm/worker/worker.py and vllm/v1/core/kv_cache_utils.py, the last since 0.8; vllm/v1/worker/utils.py.
		say(VLLM, "No available memory", `No available memory for the cache blocks`, func(s *scanner, _ []string) {
			s.fails(VLLM, Failure{Reason: NoMemoryForCache, Of: Cache})
		}),
		say(VLLM, "max seq len", `The model's max seq len \(NUM\) is larger than the maximum number of tokens that can be stored in KV cache \(NUM\)`, func(s *scanner, m []string) {
			s.fails(VLLM, Failure{Reason: RequestTooLong, Of: Cache, Tokens: count(m[1]), Fits: count(m[2])})
		}),
		// Terminals wrap this line, so its parts are looked for apart.
		say(VLLM, "max seq len", `max seq len \(NUM\), \(SIZE KV cach`, func(s *scanner, m []string) {
			s.fails(VLLM, Failure{Reason: RequestTooLong, Of: Cache, Tokens: count(m[1]), Needs: size(m[2], m[3])})
		}),
		say(VLLM, "available KV cache memory (", `available KV cache memory \(SIZE\)`, func(s *scanner, m []string) {
			s.fails(VLLM, Failure{Reason: RequestTooLong, Of: Cache})
			keep(&s.now.Failure.Has, size(m[1], m[2]))
		}),
		say(VLLM, "estimated maximum model length", `estimated maximum model length is (\d{1,15})`, func(s *scanner, m []string) {
			s.fails(VLLM, Failure{Reason: RequestTooLong, Of: Cache})
			keep(&s.now.Failure.Fits, count(m[1]))
		}),
		onVLLM("less than desired", `Free memory on device(?: \S+)? \(NUM/NUM GiB\) on startup is less than desired GPU memory utilization \(NUM, SIZE\)`, func(s *scanner, r *Report, d *Device, m []string) {
			keep(&d.Free, size(m[1], "GiB"))
			keep(&d.Total, size(m[2], "GiB"))
			keep(&r.Capacity.Fraction, fraction(m[3]))
			keep(&d.Limit, size(m[4], m[5]))
			s.fails(VLLM, Failure{Reason: DeviceInUse, Device: d.Name, Needs: d.Limit, Has: d.Free})
		}),
		onVLLM("Error in memory profiling", `Error in memory profiling\. Initial free memory NUM( GiB)?, current free memory NUM`, func(s *scanner, _ *Report, d *Device, m []string) {
			unit := "B"
			if m[2] != "" {
				unit = "GiB"
			}
			keep(&d.Free, size(m[1], unit))
			keep(&d.Left, size(m[3], unit))
			s.fails(VLLM, Failure{Reason: MemoryReleased, Device: d.Name, Needs: d.Left, Has: d.Free})
		}),
		say(VLLM, "Failed to load model", `Failed to load model - not enough GPU memory`, func(s *scanner, _ []string) {
			s.fails(VLLM, Failure{Reason: AllocationFailed, Of: Weights})
		}),
		say(VLLM, "warming up", `CUDA out of memory occurred when warming up (?:sampler|pooler)`, func(s *scanner, _ []string) {
			s.fails(VLLM, Failure{Reason: AllocationFailed, Of: Activations})
		}),
	}
}

// vllmBegins begins a report, unless the one that is being read is still at its beginning: the banner, the arguments and
// the configuration belong to one start, and those of several engines as well.
func vllmBegins(s *scanner) *Report {
	r := s.report(VLLM)
	cached := func(d *Device) bool { return has(d, Cache) }
	if r.ready() || r.Failure != nil || slices.ContainsFunc(r.Devices, cached) {
		return s.begin(VLLM)
	}
	return r
}

// vllmLoaded takes the weights of a rank. A rank that loads weights behind its cache was started again.
func vllmLoaded(s *scanner, m []string) {
	r, name := s.report(VLLM), vllmRank(s.text)
	if d := r.Find(name); d != nil && r.ready() && has(d, Weights) {
		r = s.begin(VLLM)
	}
	r.device(name).put(Weights, size(m[1], m[2]))
}

// takeFraction notes which part of a device an engine takes.
func takeFraction(r *Report, d *Device, f *float64) {
	keep(&r.Capacity.Fraction, f)
	if f != nil && d.Total != nil {
		limit := alloc.Bytes(*f * float64(*d.Total))
		d.Limit = &limit
	}
}

// fails keeps the first failure of a start: later ones follow from it.
func (s *scanner) fails(engine Engine, f Failure) {
	if r := s.report(engine); r.Failure == nil {
		f.Line = s.number
		r.Failure = &f
	}
}

var (
	vllmWorker  = regexp.MustCompile(`\(((?:Engine|DPEngine|Worker|VllmWorker|RayWorker)\w*)(?:(?: rank=(\d{1,9}))? pid=(\d{1,12})|\))`)
	vllmStage   = regexp.MustCompile(`\[Stage-(\d{1,6})\]`)
	vllmSetting = regexp.MustCompile(`['" (]?(model|max_seq_len|max_model_len|gpu_memory_utilization|tensor_parallel_size)['"]?[=:] ?'?([^',)}]+)`)
)

// vllmRank returns the name of the process that wrote a line, by its prefix: "(Worker_TP0 pid=101)" is TP0,
// "(VllmWorker rank=1 pid=4)" is rank 1. A single engine has no rank.
func vllmRank(line string) string {
	line = line[:min(len(line), 512)]
	if stage := vllmStage.FindStringSubmatch(line); stage != nil && stage[1] != "0" {
		return "stage " + stage[1] // of vLLM-Omni
	}
	m := vllmWorker.FindStringSubmatch(line)
	if m == nil {
		return ""
	}
	name := m[1]
	for _, prefix := range []string{"EngineCore", "DPEngineCoreActor", "Worker"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && !strings.HasPrefix(rest, "Process") {
			return strings.ReplaceAll(strings.Trim(rest, "_"), "_", " ")
		}
	}
	if m[2] != "" {
		return "rank " + m[2]
	}
	return "process " + m[3]
}

// vllmConfig reads settings from the line of the configuration, or of the arguments.
func vllmConfig(r *Report, line string) {
	for _, m := range vllmSetting.FindAllStringSubmatch(line, 64) {
		switch m[1] {
		case "model":
			if r.Model == "" {
				r.Model = m[2]
			}
		case "max_seq_len", "max_model_len":
			keep(&r.Capacity.Context, count(m[2]))
		case "tensor_parallel_size":
			keep(&r.Capacity.Parallel, count(m[2]))
		case "gpu_memory_utilization":
			keep(&r.Capacity.Fraction, fraction(m[2]))
		}
	}
}

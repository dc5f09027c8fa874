package enginelog

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// llamaPatterns are the lines of llama.cpp, its server, and programs that hold it, from 2024 on.
func llamaPatterns() []pattern {
	return slices.Concat(llamaModel(), llamaBuffers(), llamaContext(), llamaErrors())
}

// llamaBuffer makes a pattern of a line about one buffer.
func llamaBuffer(has, re string, of Part, take func(*Device, Part, *alloc.Bytes)) pattern {
	return say(LlamaCpp, has, re, func(s *scanner, m []string) {
		if of == Weights || s.now != nil && s.now.Failure != nil {
			llamaBegins(s)
		}
		if s.fitting {
			s.fitting = false
			dropPlans(s.now)
		}
		s.phase = of
		take(s.report(LlamaCpp).device(llamaDevice(m[1])), of, size(m[2], m[3]))
	})
}

// llamaModel is the build, the model and the devices.
func llamaModel() []pattern {
	return []pattern{
		// common/common.cpp, tools/server
		say(LlamaCpp, "main: build", `main: build = (\d{3,6})\b`, llamaVersion),
		say(LlamaCpp, "build: ", `\bbuild: (\d{3,6}) \(`, llamaVersion),
		say(LlamaCpp, "build_info", `build_info: (b\d{3,6})\b`, llamaVersion),
		say(LlamaCpp, "print_info: build", `print_info: build (\d{3,6}) \(`, llamaVersion),
		// src/llama-model-loader.cpp
		say(LlamaCpp, "loaded meta data", `llama_model_loader: loaded meta data`, func(s *scanner, _ []string) { llamaBegins(s) }),
		say(LlamaCpp, "general.name", `(?:llm_load_print_meta|print_info): general\.name\s*= (\S.*?)\s*$`, func(s *scanner, m []string) { s.report(LlamaCpp).Model = label(m[1]) }),
		// src/llama.cpp
		say(LlamaCpp, "using device", `using device (\S+) \(.*\) - NUM MiB free`, func(s *scanner, m []string) {
			keep(&llamaBegins(s).device(llamaDevice(m[1])).Free, size(m[2], "MiB"))
		}),
		say(LlamaCpp, ", VRAM: ", `Device (\d{1,4}): .*VRAM: NUM MiB`, func(s *scanner, m []string) {
			keep(&llamaBegins(s).device("CUDA"+m[1]).Total, size(m[2], "MiB"))
		}),
		say(LlamaCpp, "offloaded", `offloaded NUM/NUM layers to GPU`, func(s *scanner, m []string) {
			engine := LlamaCpp
			if strings.Contains(s.text, `msg="offloaded `) { // of ollama's own engine
				engine = Ollama
			}
			c := &s.report(engine).Capacity
			c.OnDevice, c.Layers = count(m[1]), count(m[2])
		}),
	}
}

// llamaBuffers is the buffers that are allocated.
func llamaBuffers() []pattern {
	return []pattern{
		// src/llama-model.cpp; without "model" before December 2024.
		llamaBuffer("buffer size", `(?:llm_)?load_tensors:\s+(\S+) (?:model )?buffer size\s*=\s*SIZE`, Weights, (*Device).more),
		// src/llama-kv-cache*.cpp: a windowed model has two caches on a device.
		llamaBuffer("KV buffer size", `:\s+(\S+) KV buffer size\s*=\s*SIZE`, Cache, (*Device).more),
		llamaBuffer("RS buffer size", `:\s+(\S+) RS buffer size\s*=\s*SIZE`, States, (*Device).more),
		llamaBuffer("state buffer size", `:\s+(\S+) DSV4 \S+ state buffer size\s*=\s*SIZE`, States, (*Device).more),
		llamaBuffer("LoRA buffer size", `:\s+(\S+) LoRA buffer size\s*=\s*SIZE`, Adapters, (*Device).more),
		// src/llama-context.cpp: compute buffers are allocated anew when a graph grows.
		llamaBuffer("output buffer size", `:\s+(\S+)\s+output buffer size\s*=\s*SIZE`, Output, (*Device).put),
		llamaBuffer("compute buffer size", `(?:sched_reserve|llama_context|llama_new_context_with_model|llama_init_from_model|graph_reserve):\s+(\S+) compute buffer size\s*=\s*SIZE`, Compute, (*Device).put),
		// tools/mtmd/clip.cpp
		llamaBuffer("compute buffer size", `(?:alloc_compute_meta|reserve_compute_meta|warmup):\s+(\S+) compute buffer size\s*=\s*SIZE`, Projector, (*Device).put),
	}
}

// llamaContext is the context, and what is expected before loading.
func llamaContext() []pattern {
	return []pattern{
		say(LlamaCpp, "n_ctx   ", `\bn_ctx\s*= NUM\b`, func(s *scanner, m []string) { keep(&s.report(LlamaCpp).Capacity.Context, count(m[1])) }),
		say(LlamaCpp, "n_seq_max", `\bn_seq_max\s*= NUM\b`, func(s *scanner, m []string) { keep(&s.report(LlamaCpp).Capacity.MaxRequests, count(m[1])) }),
		// common/fit.cpp: what follows is not allocated yet
		say(LlamaCpp, "getting device memory data", `getting device memory data`, func(s *scanner, _ []string) {
			llamaBegins(s)
			s.fitting = true
		}),
		// common/fit.cpp, before 2026 llama_params_fit of src/llama.cpp
		say(LlamaCpp, "projected to use", `projected to use NUM MiB of (?:device|host) memory vs\. NUM MiB of (?:free device|total host) memory`, func(s *scanner, m []string) {
			if needs, free := size(m[1], "MiB"), size(m[2], "MiB"); needs != nil && free != nil {
				llamaBegins(s).Projects = &Projection{*needs, *free}
			}
		}),
		say(LlamaCpp, " total, ", `-\s+(\S+)\s+(?:\(.*\))?\s*:\s+NUM total,\s+NUM used,`, func(s *scanner, m []string) {
			keep(&llamaBegins(s).device(llamaDevice(m[1])).Total, size(m[2], "MiB"))
		}),
		say(LlamaCpp, "context size reduced", `context size reduced from NUM to NUM`, func(s *scanner, m []string) {
			s.report(LlamaCpp).note("llama.cpp shortened the context from %s to %s tokens, so that it fits.", m[1], m[2])
		}),
		// src/llama-context.cpp, common/fit.cpp: the table at the end. Host has no total.
		say(LlamaCpp, "breakdown_print", `\|\s+- (\S+)(?: \(.*\))?\s+\|\s+(?:NUM\s*=\s*NUM\s*\+\s*\(\s*)?NUM\s*=\s*NUM\s*\+\s*NUM\s*\+\s*NUM\)?(?:\s*\+\s*(-?\d{1,12}))?\s*\|`, takeBreakdown),
	}
}

// llamaErrors is failed allocations.
func llamaErrors() []pattern {
	return []pattern{
		// ggml/src/ggml-alloc.c, ggml-cuda.cu, ggml-vulkan.cpp and src/llama-*.cpp: failed allocations
		say(LlamaCpp, "cudaMalloc failed", `allocating NUM MiB on device (\d{1,4}): cudaMalloc failed`, func(s *scanner, m []string) {
			s.fails(LlamaCpp, Failure{Reason: AllocationFailed, Device: "CUDA" + m[2], Needs: size(m[1], "MiB")})
		}),
		// The same failure, with the device as the backend names it, and the exact size.
		say(LlamaCpp, "failed to allocate", `failed to allocate (\S+) buffer of size NUM\b`, func(s *scanner, m []string) {
			s.fails(LlamaCpp, Failure{Reason: AllocationFailed})
			if f := s.now.Failure; s.number-f.Line <= 3 {
				f.Device = bounded.Name(m[1])
				keep(&f.Needs, size(m[2], "B"))
			}
		}),
		say(LlamaCpp, "device memory allocation limit", `exceeds device memory allocation limit`, func(s *scanner, _ []string) {
			s.fails(LlamaCpp, Failure{})
			s.now.Failure.Reason = BufferTooLarge
		}),
		say(LlamaCpp, "failed to allocate", `failed to allocate compute (?:pp|tg)? ?buffers`, func(s *scanner, _ []string) { llamaFailedFor(s, Compute) }),
		say(LlamaCpp, "failed to allocate", `failed to allocate buffer for (?:kv|rs) cache`, func(s *scanner, _ []string) { llamaFailedFor(s, Cache) }),
		say(LlamaCpp, "unable to allocate", `unable to allocate (\S+) buffer`, func(s *scanner, _ []string) { llamaFailedFor(s, Weights) }),
	}
}

// dropPlans drops what was expected, since what is allocated follows.
func dropPlans(r *Report) {
	for _, d := range r.Devices {
		d.Rows = slices.DeleteFunc(d.Rows, func(row Row) bool { return row.Planned })
	}
}

// takeBreakdown reads a line of the table that llama.cpp prints when it ends, and before it loads a model: then it holds
// what is expected. Its values are in whole MiB, so they stand only where the log has not said more.
func takeBreakdown(s *scanner, m []string) {
	d := s.report(LlamaCpp).device(llamaDevice(m[1]))
	beyond := size(m[8], "MiB")
	expected := s.fitting || beyond != nil && *beyond < 0
	keep(&d.Total, size(m[2], "MiB"))
	if expected {
		keep(&d.Free, size(m[3], "MiB"))
	} else {
		keep(&d.Left, size(m[3], "MiB"))
		d.put(Unaccounted, beyond)
	}
	for i, of := range []Part{Weights, Cache, Compute} {
		if n := size(m[5+i], "MiB"); n != nil && !has(d, of) && *n != 0 && !(of == Cache && has(d, States)) {
			d.set(of, *n, expected)
		}
	}
}

// llamaBegins begins a report where a model is loaded after another one was set up.
func llamaBegins(s *scanner) *Report {
	r := s.report(LlamaCpp)
	if s.phase != "" && s.phase != Weights || r.Failure != nil {
		return s.begin(r.Engine)
	}
	return r
}

func llamaVersion(s *scanner, m []string) { llamaBegins(s).Version = m[1] }

func llamaFailedFor(s *scanner, of Part) {
	s.fails(LlamaCpp, Failure{Reason: AllocationFailed, Of: of})
	s.now.Failure.Of = of
}

// llamaDevice returns the device of a kind of buffer: what a file is mapped to is the CPU's, CUDA_Host is pinned memory.
func llamaDevice(buffer string) string {
	for _, suffix := range []string{"_Mapped", "_Private", "_REPACK", "_AARCH64"} {
		buffer = strings.TrimSuffix(buffer, suffix)
	}
	return buffer
}

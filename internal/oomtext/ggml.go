package oomtext

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// ggmlFamily are the messages of ggml, and of llama.cpp above it: some lines, of which the first say the size and the last
// what it was for.
var ggmlFamily = &family{
	name:   "ggml",
	takes:  []string{"ggml", "bare", "host"},
	begins: []string{"ggml_", "alloc_tensor_range:", "graph_reserve: failed", "llama_init_from_model: failed", "llama_kv_cache", "unable to allocate"},
	lines:  10,
	parse:  parseGGML,
	judge:  helpGGML,
}

var (
	ggmlBuffer = regexp.MustCompile(`(?:allocate|of) ((?:CUDA|ROCm|HIP|Vulkan|SYCL|MTL|Metal|MUSA|CANN|OpenCL|RPC|CPU|BLAS)\w*?) buffer(?: of size (\d{1,18}))?`)
	ggmlDevice = regexp.MustCompile(`on device (\d{1,3})`)
	ggmlVulkan = regexp.MustCompile(`Device memory allocation of size (\d{1,18}) failed`)
)

func parseGGML(f *Failure, text string) bool {
	if !failed.MatchString(text) || strings.Contains(text, "pinned memory") {
		return false // of pinned memory the program does without
	}
	f.Source = "ggml"
	if strings.Contains(text, "llama") || strings.Contains(text, "load_tensors") {
		f.Source = "llama.cpp"
	}
	for _, m := range ggmlBuffer.FindAllStringSubmatch(text, -1) {
		f.Device = m[1]
		if n, err := strconv.ParseInt(m[2], 10, 64); err == nil && f.Requested < 0 && n < 1<<60 {
			f.Requested = alloc.Bytes(n)
		}
	}
	if m := ggmlVulkan.FindStringSubmatch(text); m != nil && f.Requested < 0 {
		n, _ := strconv.ParseInt(m[1], 10, 64)
		f.Requested = alloc.Bytes(n)
	}
	if m := ggmlDevice.FindStringSubmatch(text); m != nil && f.Device == "" {
		f.Device = "device " + m[1]
	}
	fill(f, text, []field{
		{"allocating", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
		{"size =", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
	})
	lower := strings.ToLower(text)
	switch {
	case strings.Contains(lower, "compute buffer"), strings.Contains(lower, "compute pp buffer"), strings.Contains(lower, "graph_reserve"):
		f.Purpose = "compute buffers"
	case strings.Contains(lower, "kv cache"), strings.Contains(lower, "kv_cache"):
		f.Purpose = "KV cache"
	case strings.Contains(lower, "gallocr_reserve"), strings.Contains(lower, "ggml-cuda"):
		f.Purpose = "compute buffers"
	case strings.Contains(lower, "error loading model"), strings.Contains(lower, "load_model"), strings.Contains(lower, "load_tensors"):
		f.Purpose = "weights"
	}
	if strings.Contains(lower, "retrying") {
		f.Notes = append(f.Notes, "the program tried again with less")
	}
	return true
}

// failed is what a line says in which memory ran out, and not another one of the same program.
var failed = regexp.MustCompile(`(?i)out of memory|failed to allocate|unable to allocate|allocation of size \d+ failed|OutOfDeviceMemory`)

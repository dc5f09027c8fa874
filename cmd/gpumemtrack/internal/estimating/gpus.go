package estimating

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// gpu is a GPU by the name that people use.
type gpu struct {
	name       string
	title      string
	memory     alloc.Bytes // that a program can have of it, less than nvidia-smi's total
	generation estimate.Generation
}

const hundredth = alloc.GiB / 100

// gpus are the usual ones, the smallest first. The memory is the "total capacity" in PyTorch's error of one out
// of memory, as issues on GitHub quote it; H200 and B200 have that of their data sheets, 141 and 180 GB, which is less.
var gpus = []gpu{
	{"t4", "T4", 1456 * hundredth, estimate.Turing},                  // Zheng-Chong/CatVTON#133
	{"a10", "A10", 2199 * hundredth, estimate.Ampere},                // zai-org/CogVLM#236
	{"l4", "L4", 2199 * hundredth, estimate.Ada},                     // nvidia-smi has the A10's total: modal-labs/modal-client#2797
	{"4090", "RTX 4090", 2352 * hundredth, estimate.Ada},             // Soul-AILab/SoulX-FlashTalk#5
	{"3090", "RTX 3090", 2369 * hundredth, estimate.Ampere},          // vllm-project/vllm#2140
	{"5090", "RTX 5090", 3136 * hundredth, estimate.Blackwell},       // TrajectoryCrafter/TrajectoryCrafter#20
	{"v100", "V100 (32 GB)", 3174 * hundredth, estimate.Volta},       // haotian-liu/LLaVA#812
	{"a100-40gb", "A100 (40 GB)", 3950 * hundredth, estimate.Ampere}, // TianheWu/CoSeR#10
	{"l40s", "L40S", 4453 * hundredth, estimate.Ada},                 // Wan-Video/Wan2.1#205
	{"h100", "H100", 7911 * hundredth, estimate.Hopper},              // vllm-project/vllm#27508
	{"a100", "A100 (80 GB)", 7925 * hundredth, estimate.Ampere},      // levihsu/OOTDiffusion#235
	{"h200", "H200", 141e9, estimate.Hopper},
	{"b200", "B200", 180e9, estimate.Blackwell},
}

// gpuNames are the names of GPUs and, after them, of generations.
func gpuNames() []string {
	var all []string
	for _, g := range gpus {
		all = append(all, g.name)
	}
	return append(all, names(generations)...)
}

// gpuNamed finds a GPU by its name in any case, with or without "RTX", spaces and dashes: "RTX 4090", "A100-80GB".
func gpuNamed(name string) (gpu, bool) {
	plain := strings.NewReplacer("rtx", "", "nvidia", "", "geforce", "", " ", "", "-", "", "_", "").Replace(strings.ToLower(name))
	plain = strings.TrimSuffix(plain, "80gb")
	i := slices.IndexFunc(gpus, func(g gpu) bool { return strings.ReplaceAll(g.name, "-", "") == plain })
	if i < 0 {
		return gpu{}, false
	}
	return gpus[i], true
}

// smallestGPU is the smallest of the usual ones on which it surely runs.
func smallestGPU(needs alloc.Bytes) (gpu, bool) {
	i := slices.IndexFunc(gpus, func(g gpu) bool { return needs <= g.memory })
	if i < 0 {
		return gpu{}, false
	}
	return gpus[i], true
}

// fitsFlag is the value of --fits: a size, or the name of a GPU.
type fitsFlag struct {
	pflag.Value
	size *alloc.Bytes
	gpu  *string
}

func newFitsFlag(size *alloc.Bytes, gpu *string) pflag.Value {
	return fitsFlag{cli.SizeFlag(size), size, gpu}
}

func (f fitsFlag) Set(text string) error {
	*f.gpu = ""
	if g, ok := gpuNamed(text); ok {
		*f.size, *f.gpu = g.memory, g.name
		return nil
	}
	return f.Value.Set(text)
}

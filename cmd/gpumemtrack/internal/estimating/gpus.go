package estimating

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// gpu is a GPU by its usual name.
type gpu struct {
	name       string
	title      string
	memory     alloc.Bytes // what a program can use, which is less than nvidia-smi's total
	generation string
	usual      bool // it may be proposed as the smallest GPU that is enough
}

const (
	hundredth = alloc.GiB / 100
	gigabyte  = alloc.Bytes(1e9)
)

// gpus lists the known GPUs, the smallest first. Memory in hundredths of a GiB is the "total
// capacity" that PyTorch's out-of-memory error names, as quoted in issues on GitHub. Memory in
// gigabytes comes from the data sheet, and is some percent more than a program can use.
var gpus = []gpu{
	{"4060", "RTX 4060", 775 * hundredth, "ada", true},     // ESRSchao/EdgeRegNet#2
	{"3070", "RTX 3070", 778 * hundredth, "ampere", false}, // akshitac8/OW-DETR#46
	{"3080", "RTX 3080", 10 * gigabyte, "ampere", false},
	{"1080ti", "GTX 1080 Ti", 11 * gigabyte, "pascal", false},
	{"2080ti", "RTX 2080 Ti", 11 * gigabyte, "turing", false},
	{"3080ti", "RTX 3080 Ti", 12 * gigabyte, "ampere", false},
	{"4070", "RTX 4070", 12 * gigabyte, "ada", false},
	{"4070ti", "RTX 4070 Ti", 12 * gigabyte, "ada", false},
	{"5070", "RTX 5070", 12 * gigabyte, "blackwell", false},
	{"3060", "RTX 3060", 1175 * hundredth, "ampere", true}, // smy20011/dreambooth-gui#78
	{"t4", "T4", 1456 * hundredth, "turing", true},         // Zheng-Chong/CatVTON#133
	{"p100", "P100", 16 * gigabyte, "pascal", false},
	{"v100", "V100 (16 GB)", 16 * gigabyte, "volta", false},
	{"4060ti", "RTX 4060 Ti (16 GB)", 16 * gigabyte, "ada", false},
	{"4070tisuper", "RTX 4070 Ti Super", 16 * gigabyte, "ada", false},
	{"4080", "RTX 4080", 16 * gigabyte, "ada", true},
	{"5060ti", "RTX 5060 Ti (16 GB)", 16 * gigabyte, "blackwell", false},
	{"5070ti", "RTX 5070 Ti", 16 * gigabyte, "blackwell", false},
	{"5080", "RTX 5080", 16 * gigabyte, "blackwell", false},
	{"a4000", "RTX A4000", 1561 * hundredth, "ampere", false}, // DengKaiCQ/VGGT-Long#6
	{"a10", "A10", 2199 * hundredth, "ampere", true},          // zai-org/CogVLM#236
	{"l4", "L4", 2199 * hundredth, "ada", true},               // nvidia-smi has the A10's total: modal-labs/modal-client#2797
	{"a30", "A30", 24 * gigabyte, "ampere", false},
	{"a5000", "RTX A5000", 24 * gigabyte, "ampere", false},
	{"4090", "RTX 4090", 2352 * hundredth, "ada", true},             // Soul-AILab/SoulX-FlashTalk#5
	{"3090", "RTX 3090", 2369 * hundredth, "ampere", true},          // vllm-project/vllm#2140
	{"5090", "RTX 5090", 3136 * hundredth, "blackwell", true},       // TrajectoryCrafter/TrajectoryCrafter#20
	{"v100-32gb", "V100 (32 GB)", 3174 * hundredth, "volta", false}, // haotian-liu/LLaVA#812
	{"a100-40gb", "A100 (40 GB)", 3950 * hundredth, "ampere", true}, // TianheWu/CoSeR#10
	{"6000ada", "RTX 6000 Ada", 4443 * hundredth, "ada", false},     // DINGYANB/MTVCrafter#21
	{"a40", "A40", 4443 * hundredth, "ampere", false},               // nvidia-smi has the total of the RTX 6000 Ada
	{"l40", "L40", 4443 * hundredth, "ada", false},                  // so it has of this one
	{"l40s", "L40S", 4453 * hundredth, "ada", true},                 // Wan-Video/Wan2.1#205
	{"a6000", "RTX A6000", 4740 * hundredth, "ampere", true},        // PrimeIntellect-ai/prime-rl's benchmarks; older drivers 47.54
	{"h100", "H100", 7911 * hundredth, "hopper", true},              // vllm-project/vllm#27508
	{"a100", "A100 (80 GB)", 7925 * hundredth, "ampere", true},      // levihsu/OOTDiffusion#235
	{"h20", "H20", 96 * gigabyte, "hopper", false},
	{"gh200", "GH200", 96 * gigabyte, "hopper", false},
	{"h100nvl", "H100 NVL", 9310 * hundredth, "hopper", false},                  // as most reports quote
	{"pro6000", "RTX PRO 6000 Blackwell", 9497 * hundredth, "blackwell", false}, // as most reports quote
	{"h200", "H200", 13980 * hundredth, "hopper", true},                         // as most reports quote: more than its data sheet has
	{"b200", "B200", 17835 * hundredth, "blackwell", true},                      // pytorch/ao#4002
	{"b300", "B300", 288 * gigabyte, "blackwell", true},
}

// gpuNames returns the names of GPUs and, after them, of generations.
func gpuNames() []string {
	var all []string
	for _, g := range gpus {
		all = append(all, g.name)
	}
	return append(all, generations...)
}

// makes matches words in full names of GPUs that do not identify a GPU.
var makes = regexp.MustCompile(`^(nvidia|geforce|rtx|gtx|tesla|quadro|sxm\d*|pcie|pg\d+|hbm\d\w?|generation|blackwell|workstation|server|edition)$`)

// sameGPU maps other names of GPUs to ours, without the size of memory if it is the usual one.
var sameGPU = map[string]string{
	"a10080gb": "a100", "h10080gb": "h100", "a10040": "a100-40gb", "a10080": "a100", "v10016gb": "v100", "a10g": "a10", "306012gb": "3060", "408016gb": "4080",
	"409024gb": "4090", "309024gb": "3090", "509032gb": "5090", "l424gb": "l4", "a1024gb": "a10", "t416gb": "t4", "a600048gb": "a6000",
	"4060ti16gb": "4060ti", "5060ti16gb": "5060ti", "4080super": "4080", "3090ti": "3090",
}

// gpuNamed finds a GPU by its name in upper or lower case, with or without maker, spaces and
// dashes: "RTX 4090", "NVIDIA H100 80GB HBM3".
func gpuNamed(name string) (gpu, bool) {
	plain := plainGPU(name)
	if same, ok := sameGPU[plain]; ok {
		plain = same
	}
	i := slices.IndexFunc(gpus, func(g gpu) bool {
		return plain != "" && strings.ReplaceAll(g.name, "-", "") == strings.ReplaceAll(plain, "-", "")
	})
	if i < 0 {
		return gpu{}, false
	}
	return gpus[i], true
}

// plainGPU is a GPU's name without its maker, spaces and dashes, in lower case.
func plainGPU(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return strings.ContainsRune(" -_()", r) })
	plain := strings.Join(slices.DeleteFunc(words, makes.MatchString), "")
	return strings.TrimPrefix(strings.TrimPrefix(plain, "rtx"), "gtx")
}

// sold is the memory in GB that a GPU is sold with, which has as many GiB: the next usual number above what a program can use.
func (g gpu) sold() int {
	if g.memory%gigabyte == 0 {
		return int(g.memory / gigabyte)
	}
	usual := []int{8, 12, 16, 24, 32, 40, 48, 80}
	i, _ := slices.BinarySearch(usual, int((g.memory+alloc.GiB-1)/alloc.GiB))
	return usual[min(i, len(usual)-1)]
}

// decimalNote explains a size in GB, of which a card that is sold with as many GB has more: it has GiB, less what its driver
// keeps. It is empty for other sizes.
func decimalNote(size string) string {
	number, ok := strings.CutSuffix(strings.ToUpper(strings.TrimSpace(size)), "GB")
	gb, err := strconv.Atoi(strings.TrimSpace(number))
	if !ok || err != nil || gb < 1 {
		return ""
	}
	var cards, names []string
	for _, g := range gpus {
		if g.usual && g.sold() == gb {
			cards, names = append(cards, fmt.Sprintf("%s %v", g.title, g.memory)), append(names, g.name)
		}
	}
	if len(cards) == 0 {
		return ""
	}
	return fmt.Sprintf("%d GB are %v, by 10^9 bytes; a card that is sold with %d GB has %d GiB, less what its driver keeps: %s: --fits %s",
		gb, alloc.Bytes(gb)*gigabyte, gb, gb, strings.Join(cards, ", "), names[len(names)-1])
}

// smallestGPU returns the smallest usual GPU whose memory is enough.
func smallestGPU(needs alloc.Bytes) (gpu, bool) {
	i := slices.IndexFunc(gpus, func(g gpu) bool { return g.usual && needs <= g.memory })
	if i < 0 {
		return gpu{}, false
	}
	return gpus[i], true
}

// fitsFlag is the value of --fits: a size, or the name of a GPU.
type fitsFlag struct {
	pflag.Value
	size  *alloc.Bytes
	gpu   *string
	typed *string // as the user wrote it
}

func newFitsFlag(size *alloc.Bytes, gpu, typed *string) pflag.Value {
	return fitsFlag{cli.SizeFlag(size), size, gpu, typed}
}

func (f fitsFlag) Set(size string) error {
	*f.gpu, *f.typed = "", size
	if g, ok := gpuNamed(size); ok {
		*f.size, *f.gpu = g.memory, g.name
		return nil
	}
	err := errors.New("want a size such as 24GiB, or a GPU such as 4090")
	if strings.ContainsAny(size, "0123456789") {
		err = f.Value.Set(size)
	}
	if n, name, ok := strings.Cut(strings.ToLower(size), "x"); ok && err != nil {
		if _, known := gpuNamed(name); known && strings.Trim(n, "0123456789 ") == "" && strings.TrimSpace(n) != "" {
			return fmt.Errorf("want one GPU: --fits %s with --tp %s, or --replicas %s --zero 3 in training, divides the model", strings.TrimSpace(name), n, n)
		}
	}
	isNumber := strings.Trim(size, "0123456789.") == "" && len(size) < 4 // which lacks a unit
	if near := text.Near(plainGPU(size), gpuNames()[:len(gpus)]); err != nil && !isNumber && len(near) > 0 {
		return fmt.Errorf("no such GPU is known: did you mean %s?", strings.Join(near, " or "))
	}
	return err
}

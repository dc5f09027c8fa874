package estimating

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// change is one thing that a user can do so that a model fits.
type change struct {
	about string // two changes about the same thing are never combined
	cost  int    // what it costs the user: see changes
	flags string // as the user would type them
	says  string // what it does, and its disadvantage
}

// changes are several changes made together. Their methods return the flags, the cost and the words
// of all of them.
type changes []change

func (cs changes) cost() (sum int) {
	for _, c := range cs {
		sum += c.cost
	}
	return sum
}

// about joins what they are about. It is "" if two are about the same thing.
func (cs changes) about() string {
	var all []string
	for _, c := range cs {
		if slices.Contains(all, c.about) {
			return ""
		}
		all = append(all, c.about)
	}
	return strings.Join(all, " ")
}

// changes returns the changes that suit the model and the question. Of those about the same thing,
// the strongest comes last. Costs rank them: 0 is a newer version, 1 is as good and as fast, 2 is
// slower, 3 is less precise, 4 to 6 trains, reads or stores something else, 7 and more needs more
// GPUs or is much slower.
func (e estimated) changes(s *search) changes {
	o, r := e.options, e.Report
	all := append(o.smaller(), e.shorter()...)
	if g, _ := o.generation(); o.loading == "" && g != "" && !o.cpu {
		all = append(all, change{"context", 1, "--cuda-loading lazy", "kernels that CUDA loads when they are used (CUDA_MODULE_LOADING=LAZY)"})
	}
	if r.Params.Count > 0 && r.Params.Bytes >= 4*alloc.Bytes(r.Params.Count) && o.autocast == "" && !o.llamaCpp {
		half := "bfloat16"
		if g, _ := o.generation(); g == "pascal" || g == "volta" || g == "turing" {
			half = "float16" // these have no bfloat16
		}
		if o.train {
			all = append(all, change{"type", 2, "--autocast " + half, "autocast to " + half})
		}
		if !o.train || half == "bfloat16" { // training in pure float16 does not converge
			all = append(all, change{"type", 3, "--dtype " + half, "weights and activations in " + half + " (less precise)"})
		}
	}
	switch {
	case o.train:
		return append(append(all, o.trainedOtherwise(r)...), o.moreDevices()...)
	case o.llamaCpp:
		return append(all, e.servedOtherwise(s)...)
	}
	if o.serve {
		all = append(all, o.smallerCache()...)
	}
	if o.loss.base == "" && o.dtype == "" {
		for _, q := range []struct {
			base string
			cost int
			bits string
		}{{"int8", 3, "8 bits"}, {"nf4", 4, "4 bits"}} {
			all = append(all, change{"weights", q.cost, "--quantize " + q.base, "weights in " + q.bits + " (bitsandbytes, less precise)"})
		}
	}
	if o.offload == "" && !o.cpu {
		all = append(all, change{"weights", 10, "--offload parameters", "weights in CPU memory (much slower)"})
	}
	return append(all, o.moreDevices()...)
}

// smaller returns the changes to a smaller batch: a half, a quarter, and so on to one.
func (o estimateOptions) smaller() changes {
	var all changes
	for n := o.batch / 2; n >= 1; n /= 2 {
		c := change{"batch", 2, "--batch " + strconv.Itoa(n), fmt.Sprintf("%d at once instead of %d (slower)", n, o.batch)}
		if o.train && o.batch%n == 0 {
			steps := o.accumulate * o.batch / n
			c.flags += fmt.Sprintf(" --accumulate %d", steps)
			c.says = fmt.Sprintf("batches of %d, accumulated to %d (slower, trains the same)", n, n*steps)
		}
		all = append(all, c)
	}
	return all
}

// leastTokens is the shortest text that is proposed.
const leastTokens = 512

// shorter returns the changes to a shorter text: a half, a quarter and so on. They cost less if the
// user gave no length.
func (e estimated) shorter() changes {
	var all changes
	cost, tokens := 5, e.options.seq
	if i := slices.Index(e.Assumed, "--seq"); i >= 0 {
		cost = 2
		tokens, _ = strconv.Atoi(e.Assumed[i+1])
	}
	for n := tokens / 2; n >= leastTokens; n, cost = n/2, cost+1 {
		all = append(all, change{"length", cost, "--seq " + strconv.Itoa(n), fmt.Sprintf("%d tokens instead of %d", n, tokens)})
	}
	return all
}

// trainedOtherwise returns the changes in how one device trains.
func (o estimateOptions) trainedOtherwise(r *estimate.Report) changes {
	var all changes
	adam := o.optimizer == "adam" || o.optimizer == "adamw"
	if o.form == "" && !o.inBackward && (adam || o.optimizer == "sgd" || o.optimizer == "momentum") {
		all = append(all, change{"optimizer", 1, "--optimizer-form fused", "the optimizer in one kernel (fused=True)"})
	}
	if adam {
		all = append(all, change{"optimizer", 3, "--optimizer adam8bit", "Adam's states in 8 bits (bitsandbytes)"})
	}
	if o.loss.name == usualLoss && o.loss.chunks == 1 {
		all = append(all, change{"loss", 1, "--loss-chunks 8", "the loss of an eighth of the tokens at a time"})
	}
	if len(o.checkpoints) == 0 && slices.ContainsFunc(r.Layers, isNumbered) {
		all = append(all, change{"activations", 2, "--checkpoint " + blocks, "activations computed again in the backward pass (about a third slower)"})
	}
	if o.offload == "" {
		all = append(all,
			change{"states", 6, "--offload optimizer", "the optimizer in CPU memory (slower)"},
			change{"states", 10, "--offload parameters", "the weights in CPU memory (much slower)"})
	}
	newer := o.bitsandbytes == "" && o.pytorch == ""
	if newer && (o.qlora || o.loss.base != "") {
		all = append(all, change{"bitsandbytes", 0, "--bitsandbytes " + newBitsandbytes, "bitsandbytes " + newBitsandbytes + " or newer"})
	}
	inFourBits := "--qlora"
	if newer {
		inFourBits += " --bitsandbytes " + newBitsandbytes
	}
	if o.lora == 0 {
		all = append(all,
			change{"trained", 4, "--lora 16", "LoRA adapters of rank 16 instead of all weights"},
			change{"trained", 5, "--lora 16 " + inFourBits, "LoRA adapters of rank 16 on weights in 4 bits (QLoRA)"})
	} else if !o.qlora && o.loss.base == "" {
		all = append(all, change{"trained", 3, inFourBits, "the weights below the adapters in 4 bits (QLoRA)"})
	}
	return all
}

// newBitsandbytes is the first version that does not keep the inputs of quantized layers.
const newBitsandbytes = "0.43.2"

// moreDevices returns the changes to 2, 4 or 8 GPUs.
func (o estimateOptions) moreDevices() changes {
	var all changes
	for i, n := range []int{2, 4, 8} {
		switch {
		case o.tp > 1 || o.training.pipeline > 1 || o.cpu:
		case !o.train:
			all = append(all, change{"devices", 7 + i, "--tp " + strconv.Itoa(n), fmt.Sprintf("%d GPUs that share each layer (tensor parallel)", n)})
		case o.zero < 3 && n >= o.replicas:
			all = append(all, change{"devices", 7 + i, "--replicas " + strconv.Itoa(n) + " --zero 3", fmt.Sprintf("%d GPUs that share all states (ZeRO 3 or FSDP)", n)})
		}
	}
	return all
}

// smallerCache returns the changes in how prompts are processed, and in what is kept for each
// token.
func (o estimateOptions) smallerCache() changes {
	var all changes
	if o.chunk == 0 {
		all = append(all, change{"prompt", 1, "--prompt-chunk " + strconv.Itoa(piece), fmt.Sprintf("prompts processed %d tokens at a time, as servers do", piece)})
	}
	if o.kv == "" {
		all = append(all, change{"cache", 3, "--kv fp8", "keys and values in 8 bits (less precise)"})
	}
	return all
}

// servedOtherwise returns the changes in how llama.cpp serves. It proposes the most layers that fit
// on the GPU, and for pairs of changes a half and a quarter of them.
func (e estimated) servedOtherwise(s *search) changes {
	var all changes
	o, total := e.options, e.Report.ModelLayers
	if o.kv == "" {
		all = append(all, change{"cache", 3, "--kv q8_0 --flash-attention", "keys and values in 8 bits (less precise)"})
	}
	if o.dtype == "" && o.llama.layers == allLayers && o.llama.shares == nil {
		all = append(all, change{"weights", 4, "--best-quantization", "weights in the widest of llama.cpp's quantizations that fits (less precise)"})
	}
	onGPU := func(n int) change {
		return change{"layers", 6, "--gpu-layers " + strconv.Itoa(n), fmt.Sprintf("%d of the %d layers on the GPU, the others on the CPU (slower)", n, total)}
	}
	layers := e.Report.GPULayers
	if layers < 2 {
		return all
	}
	none := sort.Search(layers, func(n int) bool { // that many are too many
		needs, ok := s.needs(changes{onGPU(n)})
		return !ok || needs > o.fits
	})
	if most := none - 1; most > 0 {
		all = append(all, onGPU(most))
	}
	return append(all, onGPU(layers/2), onGPU(max(1, layers/4)))
}

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
	about string   // two changes about the same thing are never combined
	cost  int      // what it costs the user: see changes
	flags []string // as the user would type them
	says  string   // what it does, and its disadvantage
	apply func(o *estimateOptions)
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
		all = append(all, change{"context", 1, []string{"--cuda-loading", "lazy"}, "kernels that CUDA loads when they are used (CUDA_MODULE_LOADING=LAZY)",
			func(o *estimateOptions) { o.loading = "lazy" }})
	}
	if r.Params.Count > 0 && r.Params.Bytes >= 4*alloc.Bytes(r.Params.Count) && o.autocast == "" && !o.llamaCpp {
		half := "bfloat16"
		if g, _ := o.generation(); g == "pascal" || g == "volta" || g == "turing" {
			half = "float16" // these have no bfloat16
		}
		if o.train {
			all = append(all, change{"type", 2, []string{"--autocast", half}, "autocast to " + half,
				func(o *estimateOptions) { o.autocast = half }})
		}
		if !o.train || half == "bfloat16" { // training in pure float16 does not converge
			all = append(all, change{"type", 3, []string{"--dtype", half}, "weights and activations in " + half + " (less precise)",
				func(o *estimateOptions) { o.dtype = half }})
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
			all = append(all, change{"weights", q.cost, []string{"--quantize", q.base}, "weights in " + q.bits + " (bitsandbytes, less precise)",
				func(o *estimateOptions) { o.loss.base = q.base }})
		}
	}
	if o.offload == "" && !o.cpu {
		all = append(all, change{"weights", 10, []string{"--offload", "parameters"}, "weights in CPU memory (much slower)",
			func(o *estimateOptions) { o.offload = "parameters" }})
	}
	return append(all, o.moreDevices()...)
}

// smaller returns the changes to a smaller batch: a half, a quarter, and so on to one.
func (o estimateOptions) smaller() changes {
	var all changes
	for n := o.batch / 2; n >= 1; n /= 2 {
		batch, steps := n, o.accumulate
		c := change{"batch", 2, []string{"--batch", strconv.Itoa(n)}, fmt.Sprintf("%d at once instead of %d (slower)", n, o.batch), func(o *estimateOptions) { o.batch = batch }}
		if o.train && o.batch%n == 0 {
			steps *= o.batch / n
			c.flags = append(c.flags, "--accumulate", strconv.Itoa(steps))
			c.says = fmt.Sprintf("batches of %d, accumulated to %d (slower, trains the same)", n, n*steps)
			c.apply = func(o *estimateOptions) { o.batch, o.accumulate = batch, steps }
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
		all = append(all, change{"length", cost, []string{"--seq", strconv.Itoa(n)}, fmt.Sprintf("%d tokens instead of %d", n, tokens), func(o *estimateOptions) { o.seq = n }})
	}
	return all
}

// trainedOtherwise returns the changes in how one device trains.
func (o estimateOptions) trainedOtherwise(r *estimate.Report) changes {
	var all changes
	adam := o.optimizer == "adam" || o.optimizer == "adamw"
	if o.form == "" && !o.inBackward && (adam || o.optimizer == "sgd" || o.optimizer == "momentum") {
		all = append(all, change{"optimizer", 1, []string{"--optimizer-form", "fused"}, "the optimizer in one kernel (fused=True)",
			func(o *estimateOptions) { o.form = "fused" }})
	}
	if adam {
		all = append(all, change{"optimizer", 3, []string{"--optimizer", "adam8bit"}, "Adam's states in 8 bits (bitsandbytes)",
			func(o *estimateOptions) { o.optimizer = "adam8bit" }})
	}
	if o.loss.name == usualLoss && o.loss.chunks == 1 {
		all = append(all, change{"loss", 1, []string{"--loss-chunks", "8"}, "the loss of an eighth of the tokens at a time",
			func(o *estimateOptions) { o.loss.chunks = 8 }})
	}
	if len(o.checkpoints) == 0 && slices.ContainsFunc(r.Layers, isNumbered) {
		all = append(all, change{"activations", 2, []string{"--checkpoint", blocks}, "activations computed again in the backward pass (about a third slower)",
			func(o *estimateOptions) { o.checkpoints = []string{blocks} }})
	}
	if o.offload == "" {
		all = append(all,
			change{"states", 6, []string{"--offload", "optimizer"}, "the optimizer in CPU memory (slower)",
				func(o *estimateOptions) { o.offload = "optimizer" }},
			change{"states", 10, []string{"--offload", "parameters"}, "the weights in CPU memory (much slower)",
				func(o *estimateOptions) { o.offload = "parameters" }})
	}
	newer := o.bitsandbytes == "" && o.pytorch == ""
	if newer && (o.qlora || o.loss.base != "") {
		all = append(all, change{"bitsandbytes", 0, []string{"--bitsandbytes", newBitsandbytes}, "bitsandbytes " + newBitsandbytes + " or newer",
			func(o *estimateOptions) { o.bitsandbytes = newBitsandbytes }})
	}
	inFourBits := []string{"--qlora"}
	if newer {
		inFourBits = append(inFourBits, "--bitsandbytes", newBitsandbytes)
	}
	quantized := func(o *estimateOptions) {
		o.qlora = true
		if newer {
			o.bitsandbytes = newBitsandbytes
		}
	}
	if o.lora == 0 {
		all = append(all,
			change{"trained", 4, []string{"--lora", "16"}, "LoRA adapters of rank 16 instead of all weights",
				func(o *estimateOptions) { o.lora = 16 }},
			change{"trained", 5, append([]string{"--lora", "16"}, inFourBits...), "LoRA adapters of rank 16 on weights in 4 bits (QLoRA)",
				func(o *estimateOptions) { o.lora = 16; quantized(o) }})
	} else if !o.qlora && o.loss.base == "" {
		all = append(all, change{"trained", 3, inFourBits, "the weights below the adapters in 4 bits (QLoRA)", quantized})
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
			all = append(all, change{"devices", 7 + i, []string{"--tp", strconv.Itoa(n)}, fmt.Sprintf("%d GPUs that share each layer (tensor parallel)", n),
				func(o *estimateOptions) { o.tp = n }})
		case o.zero < 3 && n >= o.replicas:
			all = append(all, change{"devices", 7 + i, []string{"--replicas", strconv.Itoa(n), "--zero", "3"}, fmt.Sprintf("%d GPUs that share all states (ZeRO 3 or FSDP)", n),
				func(o *estimateOptions) { o.replicas, o.zero = n, 3 }})
		}
	}
	return all
}

// smallerCache returns the changes in how prompts are processed, and in what is kept for each
// token.
func (o estimateOptions) smallerCache() changes {
	var all changes
	if o.chunk == 0 {
		all = append(all, change{"prompt", 1, []string{"--prompt-chunk", strconv.Itoa(piece)}, fmt.Sprintf("prompts processed %d tokens at a time, as servers do", piece),
			func(o *estimateOptions) { o.chunk = piece }})
	}
	if o.kv == "" {
		all = append(all, change{"cache", 3, []string{"--kv", "fp8"}, "keys and values in 8 bits (less precise)",
			func(o *estimateOptions) { o.kv = "fp8" }})
	}
	return all
}

// servedOtherwise returns the changes in how llama.cpp serves. It proposes the most layers that fit
// on the GPU, and for pairs of changes a half and a quarter of them.
func (e estimated) servedOtherwise(s *search) changes {
	var all changes
	o, total := e.options, e.Report.ModelLayers
	if o.kv == "" {
		all = append(all, change{"cache", 3, []string{"--kv", "q8_0", "--flash-attention"}, "keys and values in 8 bits (less precise)",
			func(o *estimateOptions) { o.kv, o.flashAttention = "q8_0", true }})
	}
	if o.dtype == "" && o.llama.layers == allLayers && o.llama.shares == nil {
		all = append(all, change{"weights", 4, []string{"--best-quantization"}, "weights in the widest of llama.cpp's quantizations that fits (less precise)",
			func(o *estimateOptions) { o.quantize = true }})
	}
	onGPU := func(n int) change {
		return change{"layers", 6, []string{"--gpu-layers", strconv.Itoa(n)}, fmt.Sprintf("%d of the %d layers on the GPU, the others on the CPU (slower)", n, total),
			func(o *estimateOptions) { o.llama.layers = n }}
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

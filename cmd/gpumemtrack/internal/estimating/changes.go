package estimating

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// change is one thing that a user can do so that a model fits.
type change struct {
	about string   // two changes about the same do not go together
	cost  int      // what it costs the user: see changes
	flags []string // as they are typed
	says  string   // what it does, and at what price
	apply func(o *estimateOptions)
}

// remedy is a change, or two, with which the model fits.
type remedy struct {
	Says    string      `json:"says"`
	Flags   []string    `json:"flags"`
	Needs   alloc.Bytes `json:"needed_upper_bytes"`
	Command string      `json:"command"`

	cost int
}

// maxRemedies is how many are told.
const maxRemedies = 3

// remedies returns the changes that make the model fit, the cheapest first: alone, then in pairs. Each was
// estimated as the command that it names would be. needs is what the model needs without any.
func (o estimateOptions) remedies(name string, r *estimate.Report) []remedy {
	needs := func(changes ...change) (alloc.Bytes, bool) {
		changed := o
		for _, c := range changes {
			c.apply(&changed)
		}
		report, err := changed.estimate(name)
		if err != nil || !report.HasInput {
			return 0, false // such flags contradict each other, or do not suit the model
		}
		return report.Needs(), true
	}
	var found []remedy
	told := map[string]bool{} // what a remedy is about: the cheapest is enough
	var helps []change        // less than enough, alone
	for _, c := range o.changes(r) {
		if told[c.about] {
			continue
		}
		n, ok := needs(c)
		switch {
		case ok && n <= o.fits:
			told[c.about] = true
			found = append(found, o.remedy(n, c))
		case ok && n < r.Needs():
			helps = append(helps, c)
		}
	}
	var pairs [][2]change
	for i, a := range helps {
		for _, b := range helps[i+1:] {
			if a.about != b.about {
				pairs = append(pairs, [2]change{a, b})
			}
		}
	}
	byCost := func(a, b remedy) int { return cmp.Compare(a.cost, b.cost) }
	slices.SortStableFunc(found, byCost)
	slices.SortStableFunc(pairs, func(a, b [2]change) int { return cmp.Compare(a[0].cost+a[1].cost, b[0].cost+b[1].cost) })
	for _, p := range pairs {
		if len(found) >= maxRemedies && found[maxRemedies-1].cost <= p[0].cost+p[1].cost {
			break // what follows costs more than those that there are
		}
		about := p[0].about + " " + p[1].about
		if told[about] {
			continue
		}
		if n, ok := needs(p[0], p[1]); ok && n <= o.fits {
			told[about] = true
			found = append(found, o.remedy(n, p[0], p[1]))
			slices.SortStableFunc(found, byCost)
		}
	}
	return found[:min(len(found), maxRemedies)]
}

func (o estimateOptions) remedy(needs alloc.Bytes, changes ...change) remedy {
	m := remedy{Needs: needs}
	var says []string
	for _, c := range changes {
		m.cost += c.cost
		m.Flags = append(m.Flags, c.flags...)
		says = append(says, c.says)
	}
	m.Says, m.Command = strings.Join(says, "; "), command(o.typed, m.Flags)
	return m
}

// changes are those that suit the model and what is asked. The costs put them in order: 0 is a newer version, 1 is as good and as
// fast, 2 is slower, 3 is less precise, 4 and more is much slower, takes more GPUs, or trains something else.
func (o estimateOptions) changes(r *estimate.Report) []change {
	all := o.smaller()
	if r.Params.Count > 0 && r.Params.Bytes >= 4*alloc.Bytes(r.Params.Count) && o.autocast == "" && !o.llamaCpp {
		half := "bfloat16"
		if g, _ := o.generation(); g == estimate.Pascal || g == estimate.Volta || g == estimate.Turing {
			half = "float16" // these have no bfloat16
		}
		if o.train {
			all = append(all, change{"type", 2, []string{"--autocast", half}, "autocast to " + half,
				func(o *estimateOptions) { o.autocast = half }})
		}
		if !o.train || half == "bfloat16" { // training in float16 alone does not converge
			all = append(all, change{"type", 3, []string{"--dtype", half}, "weights and activations in " + half + ", which is less precise",
				func(o *estimateOptions) { o.dtype = half }})
		}
	}
	switch {
	case o.train:
		return append(append(all, o.trainedOtherwise(r)...), o.moreDevices()...)
	case o.llamaCpp:
		return append(all, o.servedOtherwise(r)...)
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
			all = append(all, change{"weights", q.cost, []string{"--quantize", q.base}, "weights in " + q.bits + " (bitsandbytes), which is less precise",
				func(o *estimateOptions) { o.loss.base = q.base }})
		}
	}
	if o.offload == "" && !o.cpu {
		all = append(all, change{"weights", 7, []string{"--offload", "parameters"}, "weights in the memory of the CPU, which is much slower",
			func(o *estimateOptions) { o.offload = "parameters" }})
	}
	return append(all, o.moreDevices()...)
}

// smaller are the changes that take fewer inputs at once: a half, a quarter, ..., one.
func (o estimateOptions) smaller() []change {
	var all []change
	for n := o.batch / 2; n >= 1; n /= 2 {
		batch, steps := n, o.accumulate
		c := change{"batch", 2, []string{"--batch", strconv.Itoa(n)}, fmt.Sprintf("%d at once in place of %d, which is slower", n, o.batch), func(o *estimateOptions) { o.batch = batch }}
		if o.train && o.batch%n == 0 {
			steps *= o.batch / n
			c.flags = append(c.flags, "--accumulate", strconv.Itoa(steps))
			c.says = fmt.Sprintf("batches of %d, accumulated, which is slower and trains the same", n)
			c.apply = func(o *estimateOptions) { o.batch, o.accumulate = batch, steps }
		}
		all = append(all, c)
	}
	return all
}

// trainedOtherwise are the changes of how one device trains.
func (o estimateOptions) trainedOtherwise(r *estimate.Report) []change {
	var all []change
	adam := o.optimizer == "adam" || o.optimizer == "adamw"
	if o.form == "" && !o.inBackward && (adam || o.optimizer == "sgd" || o.optimizer == "momentum") {
		all = append(all, change{"optimizer", 1, []string{"--optimizer-form", "fused"}, "the optimizer in one kernel (fused=True)",
			func(o *estimateOptions) { o.form = "fused" }})
	}
	if adam {
		all = append(all, change{"optimizer", 3, []string{"--optimizer", "adam8bit"}, "the optimizer's states in 8 bits (bitsandbytes)",
			func(o *estimateOptions) { o.optimizer = "adam8bit" }})
	}
	if o.loss.name == usualLoss && o.loss.chunks == 1 {
		all = append(all, change{"loss", 1, []string{"--loss-chunks", "8"}, "the loss for an eighth of the tokens at a time",
			func(o *estimateOptions) { o.loss.chunks = 8 }})
	}
	if len(o.checkpoints) == 0 && slices.ContainsFunc(r.Layers, isNumbered) {
		all = append(all, change{"activations", 2, []string{"--checkpoint", blocks}, "blocks computed again in the backward pass, which takes about a third longer",
			func(o *estimateOptions) { o.checkpoints = []string{blocks} }})
	}
	if o.offload == "" {
		all = append(all,
			change{"states", 5, []string{"--offload", "optimizer"}, "the optimizer in the memory of the CPU, which is slower",
				func(o *estimateOptions) { o.offload = "optimizer" }},
			change{"states", 7, []string{"--offload", "parameters"}, "parameters in the memory of the CPU, which is much slower",
				func(o *estimateOptions) { o.offload = "parameters" }})
	}
	if o.bitsandbytes == "" && o.pytorch == "" && (o.qlora || o.training.base != "" || o.loss.base != "") {
		all = append(all, change{"bitsandbytes", 0, []string{"--bitsandbytes", "0.43.2"}, "bitsandbytes 0.43.2 or newer",
			func(o *estimateOptions) { o.bitsandbytes = "0.43.2" }})
	}
	if o.lora == 0 {
		all = append(all,
			change{"trained", 6, []string{"--lora", "16"}, "LoRA adapters of rank 16 in place of the weights",
				func(o *estimateOptions) { o.lora = 16 }},
			change{"trained", 7, []string{"--lora", "16", "--qlora"}, "LoRA adapters of rank 16, on weights in 4 bits",
				func(o *estimateOptions) { o.lora, o.qlora = 16, true }})
	} else if !o.qlora && o.training.base == "" {
		all = append(all, change{"trained", 4, []string{"--qlora"}, "weights below the adapters in 4 bits",
			func(o *estimateOptions) { o.qlora = true }})
	}
	return all
}

// moreDevices are the changes that take 2, 4 or 8 GPUs.
func (o estimateOptions) moreDevices() []change {
	var all []change
	for i, n := range []int{2, 4, 8} {
		switch {
		case o.tp > 1 || o.training.pipeline > 1 || o.cpu:
		case !o.train:
			all = append(all, change{"devices", 6 + i, []string{"--tp", strconv.Itoa(n)}, fmt.Sprintf("%d GPUs that share each layer", n),
				func(o *estimateOptions) { o.tp = n }})
		case o.zero < 3 && n >= o.replicas:
			all = append(all, change{"devices", 6 + i, []string{"--replicas", strconv.Itoa(n), "--zero", "3"}, fmt.Sprintf("%d GPUs that share all states (ZeRO 3, FSDP)", n),
				func(o *estimateOptions) { o.replicas, o.zero = n, 3 }})
		}
	}
	return all
}

// smallerCache are the changes of how prompts are processed, and of what is kept of each token.
func (o estimateOptions) smallerCache() []change {
	var all []change
	if o.chunk == 0 {
		all = append(all, change{"prompt", 1, []string{"--prompt-chunk", "512"}, "prompts cut into pieces of 512 tokens, as servers do",
			func(o *estimateOptions) { o.chunk = 512 }})
	}
	if o.kv == "" {
		all = append(all, change{"cache", 3, []string{"--kv", "fp8"}, "keys and values in 8 bits, which is less precise",
			func(o *estimateOptions) { o.kv = "fp8" }})
	}
	return all
}

// servedOtherwise are the changes of how llama.cpp serves.
func (o estimateOptions) servedOtherwise(r *estimate.Report) []change {
	var all []change
	if o.kv == "" {
		all = append(all, change{"cache", 3, []string{"--kv", "q8_0", "--flash-attention"}, "keys and values in 8 bits, which is less precise",
			func(o *estimateOptions) { o.kv, o.flashAttention = "q8_0", true }})
	}
	if layers := r.GPULayers; layers > 1 {
		for n := layers - 1; n > 0; n-- {
			all = append(all, change{"layers", 6, []string{"--gpu-layers", strconv.Itoa(n)}, fmt.Sprintf("%d of the %d layers on the GPU, which is slower", n, r.ModelLayers),
				func(o *estimateOptions) { o.llama.layers = n }})
		}
	}
	return all
}

// command is what a user would type for flags beside those that were typed, or in place of them.
func command(typed, flags []string) string {
	var words []string
	replaced := func(flag string) bool { return slices.Contains(flags, flag) }
	for i := 0; i < len(typed); i++ {
		name, _, joined := strings.Cut(typed[i], "=")
		if strings.HasPrefix(name, "--") && replaced(name) {
			if at := slices.Index(flags, name) + 1; !joined && at < len(flags) && !strings.HasPrefix(flags[at], "--") {
				i++ // its value
			}
			continue
		}
		words = append(words, typed[i])
	}
	for i, w := range append(words, flags...) {
		if strings.ContainsAny(w, " *?[]{}'\"$&|;<>()\\`!~#") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words = append(words[:i], w)
	}
	return "gpumemtrack " + strings.Join(words, " ")
}

// writeRemedies prints what would make the model fit.
func (e estimated) writeRemedies(w io.Writer) {
	if e.Fits == nil || *e.Fits {
		return
	}
	if len(e.Remedies) == 0 {
		if e.options.searches() == 0 && e.Report.HasInput {
			fmt.Fprintf(w, "None of the usual changes, alone or in pairs, makes it fit in %s.\n", e.options.budget())
		}
		return
	}
	fmt.Fprintf(w, "What would make it fit in %s, the cheapest first:\n", e.options.budget())
	for i, r := range e.Remedies {
		fmt.Fprintf(w, "%d. at most %v with %s\n   %s\n", i+1, r.Needs, r.Says, r.Command)
	}
}

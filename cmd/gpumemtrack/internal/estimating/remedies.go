package estimating

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// remedy is one change or several with which the model fits, or nearly does.
type remedy struct {
	Says    string      `json:"says"`
	Flags   []string    `json:"flags"`
	Needs   alloc.Bytes `json:"needed_upper_bytes"`
	Command string      `json:"command"`
}

// remedies returns the changes that make the model fit, the cheapest first: one, two or three
// together. If nothing makes it fit, nearest is the best that there is, or nil if nothing helps.
func (e estimated) remedies(name string) (fit []remedy, nearest *remedy) {
	s := &search{e: e, o: e.options, name: name, solved: map[string]bool{}, feasible: map[string]bool{}, strongest: map[string]change{}}
	var helps changes // changes that help only together with others: a smaller optimizer state alone does not if the peak is in a pass
	for _, c := range s.changes() {
		if s.solved[c.about] {
			continue
		}
		if n, ok := s.try(changes{c}); ok && n > s.o.fits {
			helps, s.strongest[c.about] = append(helps, c), c
		}
	}
	var several []changes
	for i, a := range helps {
		for j, b := range helps[i+1:] {
			several = append(several, changes{a, b})
			for _, c := range helps[i+j+2:] {
				several = append(several, changes{a, b, c})
			}
		}
	}
	s.tryAll(several)
	if len(s.found) == 0 && s.nearest.Needs > 0 {
		if n, ok := s.exactly(s.with(s.nearest.changes)); ok && n < e.Needs {
			s.nearest.Needs = n
			return nil, &s.nearest.remedy
		}
	}
	for _, f := range s.found[:min(len(s.found), maxRemedies)] {
		fit = append(fit, f.remedy)
	}
	return fit, nil
}

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

// adds reports whether the changes offer something that a remedy does not: a third change beside
// two that are enough does not.
func (cs changes) adds(r found) bool {
	return len(r.changes) < 2 || slices.ContainsFunc(r.changes, func(c change) bool {
		return !slices.ContainsFunc(cs, func(other change) bool { return other.about == c.about })
	})
}

const (
	maxRemedies = 3   // the most that are printed
	maxTried    = 300 // the most combinations that are estimated
)

// found is a remedy, with the changes that it is made of.
type found struct {
	remedy
	changes changes
}

// search looks for changes that make a model fit. It estimates each combination as the command line
// with its flags would.
type search struct {
	e       estimated // what does not fit
	o       estimateOptions
	name    string
	tried   int
	found   []found
	solved  map[string]bool // what the remedies so far are about: the cheapest is enough
	nearest found           // the best of those that do not fit

	strongest map[string]change // the last change about each thing
	feasible  map[string]bool   // whether the model fits with the strongest changes about some things
}

// try notes the changes as a remedy if the model fits with them, and returns what it needs.
func (s *search) try(cs changes) (n alloc.Bytes, ok bool) {
	n, ok = s.needs(cs)
	switch {
	case !ok:
	case n <= s.o.fits:
		s.solved[cs.about()] = true
		s.found = append(s.found, s.remedy(n, cs))
		slices.SortStableFunc(s.found, func(a, b found) int { return cmp.Compare(a.changes.cost(), b.changes.cost()) })
	case s.nearest.Needs == 0 || n < s.nearest.Needs:
		s.nearest = s.remedy(n, cs)
	}
	return n, ok
}

// tryAll tries combinations, the cheapest first, until the next ones cost more than the remedies
// found.
func (s *search) tryAll(all []changes) {
	slices.SortStableFunc(all, func(a, b changes) int { return cmp.Or(cmp.Compare(a.cost(), b.cost()), cmp.Compare(len(a), len(b))) })
	for _, cs := range all {
		if s.tried >= maxTried || len(s.found) >= maxRemedies && s.found[maxRemedies-1].changes.cost() <= cs.cost() {
			return
		}
		about := cs.about()
		if about != "" && !s.solved[about] && !slices.ContainsFunc(s.found, func(r found) bool { return !cs.adds(r) }) && s.mayFit(about, cs) {
			s.try(cs)
		}
	}
}

// mayFit reports whether the model fits with the strongest changes about the same things. If not,
// weaker ones need not be tried.
func (s *search) mayFit(about string, cs changes) bool {
	feasible, known := s.feasible[about]
	if !known {
		var all changes
		for _, c := range cs {
			all = append(all, s.strongest[c.about])
		}
		n, ok := s.needs(all)
		if feasible = ok && n <= s.o.fits; ok && !feasible && (s.nearest.Needs == 0 || n < s.nearest.Needs) {
			s.nearest = s.remedy(n, all)
		}
		s.feasible[about] = feasible
	}
	return feasible
}

// needs returns what the model needs with some changes; ok is false if they contradict each other
// or do not suit the model. If the tensors alone are above the budget, it returns their peak
// without asking an allocator.
func (s *search) needs(cs changes) (n alloc.Bytes, ok bool) {
	s.tried++
	changed := s.with(cs)
	if !changed.engine.isLlama() {
		onCPU := changed
		onCPU.cpu = true
		if r, err := onCPU.estimate(s.name); err == nil && len(r.Inputs) > 0 && r.Memory().Peak.Bytes > s.o.fits {
			return r.Memory().Peak.Bytes, true
		}
	}
	return s.exactly(changed)
}

// exactly returns what the model needs with these options.
func (s *search) exactly(o estimateOptions) (n alloc.Bytes, ok bool) {
	r, err := o.estimate(s.name)
	if err != nil || len(r.Inputs) == 0 {
		return 0, false
	}
	return r.Needs(), true
}

func (s *search) remedy(needs alloc.Bytes, cs changes) found {
	m := found{remedy{Needs: needs}, cs}
	var says []string
	for _, c := range cs {
		m.Flags = append(m.Flags, strings.Fields(c.flags)...)
		says = append(says, c.says)
	}
	m.Says, m.Command = strings.Join(says, ", and "), command(s.o.args, m.Flags)
	return m
}

// with returns the options that the command has with the flags of some changes.
func (s *search) with(cs changes) estimateOptions {
	*s.o.parsed = s.o
	for _, c := range cs {
		if err := s.o.flagSet.Parse(strings.Fields(c.flags)); err != nil {
			panic(err) // the command has no such flag
		}
	}
	return *s.o.parsed
}

// command returns the command line with these flags added, or in place of the same flags.
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

// changes returns the changes that suit the model and the question. Of those about the same thing,
// the strongest comes last. Costs rank them: 0 is a newer version, 1 is as good and as fast, 2 is
// slower, 3 is less precise, 4 to 6 trains, reads or stores something else, 7 and more needs more
// GPUs or is much slower.
func (s *search) changes() changes {
	o, r := s.o, s.e.Report
	all := append(s.smaller(), s.shorter()...)
	if g, _ := o.generation(); o.loading == "" && g != "" && !o.cpu {
		all = append(all, change{"context", 1, "--cuda-loading lazy", "kernels that CUDA loads when they are used (CUDA_MODULE_LOADING=LAZY)"})
	}
	if r.Params.Count > 0 && r.Params.Bytes >= 4*alloc.Bytes(r.Params.Count) && o.autocast == "" && !o.engine.isLlama() {
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
		return append(append(all, s.trainedOtherwise()...), s.moreDevices()...)
	case o.engine.isLlama():
		return append(all, s.servedOtherwise()...)
	}
	if o.serve {
		all = append(all, s.smallerCache()...)
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
	return append(all, s.moreDevices()...)
}

// smaller returns the changes to a smaller batch: a half, a quarter, and so on to one.
func (s *search) smaller() changes {
	o, all := s.o, changes(nil)
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
func (s *search) shorter() changes {
	var all changes
	e, cost, tokens := s.e, 5, s.o.seq
	if i := slices.Index(e.Assumed, "--seq"); i >= 0 {
		cost = 2
		tokens, _ = strconv.Atoi(e.Assumed[i+1])
	}
	for n := tokens / 2; n >= leastTokens; n, cost = n/2, cost+1 {
		all = append(all, change{"length", cost, "--seq " + strconv.Itoa(n), fmt.Sprintf("%s tokens instead of %s", text.Grouped(n), text.Grouped(tokens))})
	}
	return all
}

// trainedOtherwise returns the changes in how one device trains.
func (s *search) trainedOtherwise() changes {
	o, all := s.o, changes(nil)
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
	if len(o.checkpoints) == 0 && slices.ContainsFunc(s.e.Report.Layers, isNumbered) {
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
func (s *search) moreDevices() changes {
	o, all := s.o, changes(nil)
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
func (s *search) smallerCache() changes {
	var all changes
	switch {
	case s.o.batched > piece:
		all = append(all, change{"prompt", 1, "--max-batched-tokens " + strconv.Itoa(piece), fmt.Sprintf("prompts processed %d tokens of all texts at a time", piece)})
	case s.o.batched == 0 && s.o.chunk == 0:
		all = append(all, change{"prompt", 1, "--prefill-chunk " + strconv.Itoa(piece), fmt.Sprintf("prompts processed %d tokens at a time, as servers do", piece)})
	}
	if s.o.training.attention == "" {
		all = append(all, change{"attention", 1, "--attention flash", "flash attention, which holds no scores"})
	}
	if s.o.kv == "" {
		all = append(all, change{"cache", 3, "--kv fp8", "keys and values in 8 bits (less precise)"})
	}
	return all
}

// servedOtherwise returns the changes in how llama.cpp serves. It proposes the most layers that fit
// on the GPU, and for pairs of changes a half and a quarter of them.
func (s *search) servedOtherwise() changes {
	var all changes
	o, total := s.o, s.e.Report.ModelLayers
	if o.kv == "" {
		flags := "--kv q8_0"
		if o.flashAttention == "false" { // without which llama.cpp does not quantize values
			flags += " --flash-attention"
		}
		all = append(all, change{"cache", 3, flags, "keys and values in 8 bits (less precise)"})
	}
	if o.dtype == "" && o.llama.layers == allLayers && o.llama.shares == nil {
		all = append(all, change{"weights", 4, "--best-quantization", "weights in the widest of llama.cpp's quantizations that fits (less precise)"})
	}
	onGPU := func(n int) change {
		return change{"layers", 6, "--gpu-layers " + strconv.Itoa(n), fmt.Sprintf("%d of the %d layers on the GPU, the others on the CPU (slower)", n, total)}
	}
	layers := s.e.Report.GPULayers
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

package serving

import (
	"errors"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// group sets the groups of layers that share their blocks' numbers (v1/core/kv_cache_planning.py, get_kv_cache_groups).
func (p *planner) group() error {
	if p.NoHybridManager && !p.promoteWindows() {
		return errors.New("NoHybridManager: vLLM needs its hybrid manager for layers of these kinds")
	}
	switch {
	case p.alike() || uniform(p.layers):
		p.groups = [][]int{p.all()}
	case p.BlockOutermost && p.pages() > 1:
		p.pack()
	case p.equalize():
		p.divide()
	case p.promoteWindows():
		p.groups = [][]int{p.all()}
	default:
		return errors.New("the pages of its layers cannot be made equal: vLLM refuses the model")
	}
	return nil
}

// all returns the numbers of all layers.
func (p *planner) all() []int {
	all := make([]int, len(p.layers))
	for i := range all {
		all[i] = i
	}
	return all
}

// pages returns how many sizes of pages there are.
func (p *planner) pages() int {
	sizes := map[int64]bool{}
	for _, l := range p.layers {
		sizes[l.page] = true
	}
	return len(sizes)
}

// shares reports whether the layers can be in one group as they are: those that attend to all tokens may also have a window
// that counts as full.
func (l vllmLayer) shares(other vllmLayer) bool {
	if l.kind == Full && other.kind == Full {
		l.window = other.window
	}
	return l == other
}

func (p *planner) alike() bool {
	return !slices.ContainsFunc(p.layers, func(l vllmLayer) bool { return !l.shares(p.layers[0]) })
}

// uniform reports whether all layers keep the same tokens, in pages that may differ (UniformTypeKVCacheSpecs).
func uniform(layers []vllmLayer) bool {
	first := layers[0]
	all := func(l vllmLayer) bool { return l.kind == Full || l.kind == Latent }
	return !slices.ContainsFunc(layers, func(l vllmLayer) bool {
		switch {
		case l.block != first.block:
			return true
		case all(first):
			return !all(l)
		}
		return l.kind != first.kind || l.window != first.window || l.kind == Recurrent && l.page != first.page
	})
}

// promoteWindows lets layers with a window keep all tokens, in a model that has others. It reports whether all layers then keep the
// same tokens (_promote_local_kv_cache_specs).
func (p *planner) promoteWindows() bool {
	if p.alike() || uniform(p.layers) {
		return true
	}
	full := slices.IndexFunc(p.layers, func(l vllmLayer) bool { return l.kind == Full || l.kind == Latent })
	if full < 0 {
		return false
	}
	for i, l := range p.layers {
		if l.kind == Sliding || l.kind == Chunked {
			l.kind, l.block = Full, p.layers[full].block
			l.page = int64(l.block) * l.row
			p.layers[i] = l
		}
	}
	return p.alike() || uniform(p.layers)
}

// equalize makes all pages as large as the largest (unify_kv_cache_spec_page_size): a page that divides it gets a larger block,
// others are padded. It returns false for a latent that does not divide it.
func (p *planner) equalize() bool {
	largest := int64(0)
	for _, l := range p.layers {
		largest = max(largest, l.page)
	}
	equal := slices.Clone(p.layers)
	for i := range equal {
		l := &equal[i]
		switch {
		case l.kind == Recurrent || l.page == largest:
		case largest%l.page == 0:
			l.block *= int(largest / l.page)
		case l.kind == Latent:
			return false
		}
		l.page = largest
	}
	p.layers = equal
	return true
}

// divide cuts the layers of each kind into groups of one size, some padded with layers that do not exist
// (_get_kv_cache_groups_uniform_page_size).
func (p *planner) divide() {
	var kinds [][]int
	for i, l := range p.layers {
		k := slices.IndexFunc(kinds, func(of []int) bool { return l.shares(p.layers[of[0]]) })
		if k < 0 {
			k, kinds = len(kinds), append(kinds, nil)
		}
		kinds[k] = append(kinds[k], i)
	}
	fewest, most := len(p.layers), 0
	for _, k := range kinds {
		fewest, most = min(fewest, len(k)), max(most, len(k))
	}
	size := fewest
	if 2*most < 3*fewest {
		size = most
	}
	for _, k := range kinds {
		p.groups = append(p.groups, everyNth(k, ceil(len(k), size))...)
	}
}

// everyNth deals items out to n groups in turn.
func everyNth[T any](items []T, n int) [][]T {
	groups := make([][]T, n)
	for i, item := range items {
		groups[i%n] = append(groups[i%n], item)
	}
	return groups
}

// bucket is a number of layers that keep the same tokens. Each repeat has one layer of each size of page, if there are as many
// of each.
type bucket struct {
	layers   []int
	repeats  [][]int
	balanced bool
	sizes    int // of pages
	most     int // layers of one size
}

// pack groups layers whose pages of several sizes lie side by side in a block (_get_packed_kv_cache_groups).
func (p *planner) pack() {
	var buckets []bucket
	for i := range p.layers {
		at := slices.IndexFunc(buckets, func(b bucket) bool { return uniform(append(p.of(b.layers), p.layers[i])) })
		if at < 0 {
			at, buckets = len(buckets), append(buckets, bucket{})
		}
		buckets[at].layers = append(buckets[at].layers, i)
	}
	least := 0
	for i := range buckets {
		if p.repeat(&buckets[i]); buckets[i].balanced && buckets[i].sizes > 1 {
			least = max(least, buckets[i].most)
		}
	}
	repeats := 0
	if least > 0 {
		repeats = evenest(buckets, least)
	}
	groups := func(b bucket) int {
		if b.balanced && repeats > 0 {
			return ceil(b.most, repeats)
		}
		return 1
	}
	states := func(b bucket) bool {
		kind := p.layers[b.layers[0]].kind
		return kind == Recurrent || kind == Sliding && repeats == 0
	}
	anchor := int64(0)
	for _, b := range buckets {
		n := groups(b)
		if states(b) {
			n = len(b.layers)
		}
		anchor = max(anchor, p.widest(b, n))
	}
	for _, b := range buckets {
		n := groups(b)
		if states(b) {
			n = max(n, ceil(len(b.layers), int(max(1, anchor/p.layers[b.layers[0]].page))))
		}
		if n == 1 {
			p.groups = append(p.groups, b.layers)
			continue
		}
		for _, of := range everyNth(b.repeats, n) {
			p.groups = append(p.groups, slices.Concat(of...))
		}
	}
}

// of returns layers by their numbers.
func (p *planner) of(numbers []int) []vllmLayer {
	layers := make([]vllmLayer, len(numbers), len(numbers)+1)
	for i, n := range numbers {
		layers[i] = p.layers[n]
	}
	return layers
}

// repeat sets how the pattern of a bucket's pages repeats.
func (p *planner) repeat(b *bucket) {
	var sizes []int64
	bySize := map[int64][]int{}
	for _, n := range b.layers {
		page := p.layers[n].page
		if bySize[page] == nil {
			sizes = append(sizes, page)
		}
		bySize[page] = append(bySize[page], n)
	}
	fewest := len(b.layers)
	for _, page := range sizes {
		b.most, fewest = max(b.most, len(bySize[page])), min(fewest, len(bySize[page]))
	}
	b.sizes, b.balanced = len(sizes), b.most == fewest
	for i := range fewest {
		var one []int
		for _, page := range sizes {
			one = append(one, bySize[page][i])
		}
		b.repeats = append(b.repeats, one)
	}
}

// evenest returns the number of repeats in a group, at least the least, with the fewest missing (_approximate_gcd).
func evenest(buckets []bucket, least int) int {
	most := 0
	for _, b := range buckets {
		if b.balanced {
			most = max(most, b.most)
		}
	}
	best, fewest := least, -1
	for n := least; n <= most; n++ {
		missing := 0
		for _, b := range buckets {
			if b.balanced {
				missing += (n - b.most%n) % n
			}
		}
		if fewest < 0 || missing <= fewest {
			best, fewest = n, missing
		}
	}
	return best
}

// widest returns the bytes of the largest of n groups of a bucket.
func (p *planner) widest(b bucket, n int) int64 {
	count := map[int64]int{}
	for _, l := range b.layers {
		count[p.layers[l].page]++
	}
	sum := int64(0)
	for page, layers := range count {
		sum += int64(ceil(layers, n)) * page
	}
	return sum
}

// plan returns the groups and what a block takes.
func (p *planner) plan() VLLMPlan {
	plan := VLLMPlan{Block: p.kvBlock}
	for _, group := range p.groups {
		g := VLLMGroup{Kind: p.layers[group[0]].kind, Block: p.layers[group[0]].block, Page: alloc.Bytes(p.layers[group[0]].page)}
		if p.differs(group) {
			g.Kind, g.Page = "", 0
		}
		for _, n := range group {
			g.Layers = append(g.Layers, p.numbers[n])
			if g.Kind == "" {
				g.Page += alloc.Bytes(p.layers[n].page)
			}
		}
		g.Blocks = p.groupBlocks(group, p.MaxModelLen)
		plan.Groups = append(plan.Groups, g)
		plan.BlocksPerRequest += g.Blocks
	}
	for rank := range p.Pipeline {
		plan.BytesPerBlock = max(plan.BytesPerBlock, p.blockBytes(rank))
	}
	return plan
}

// differs reports whether a group has layers of several sizes.
func (p *planner) differs(group []int) bool {
	return slices.ContainsFunc(group, func(n int) bool { return !p.layers[n].shares(p.layers[group[0]]) })
}

// blockBytes returns the bytes of a block on the GPUs of a pipeline's stage: those of the largest group, of the layers that the
// stage has. The last stages have a layer less, the very last one too, if the layers do not divide (distributed/utils.py,
// get_pp_indices).
func (p *planner) blockBytes(rank int) alloc.Bytes {
	from, to := 0, p.modelLayers(p.specs)
	if p.Pipeline > 1 {
		each, more := to/p.Pipeline, to%p.Pipeline
		size := func(r int) int {
			if r >= p.Pipeline-1-more && r < p.Pipeline-1 {
				return each + 1
			}
			return each
		}
		for r := range rank {
			from += size(r)
		}
		if rank < p.Pipeline-1 { // the draft is on the last stage
			to = from + size(rank)
		}
	}
	most := int64(0)
	for _, group := range p.groups {
		sum := int64(0)
		for _, n := range group {
			if p.numbers[n] >= from && p.numbers[n] < to {
				sum += p.layers[n].page
			}
		}
		most = max(most, sum)
	}
	return alloc.Bytes(most)
}

// smallest returns the tokens of the smallest block.
func (p *planner) smallest() int {
	least := p.layers[0].block
	for _, l := range p.layers {
		least = min(least, l.block)
	}
	return least
}

// blocks returns the blocks of a request of so many tokens, in all groups.
func (p *planner) blocks(tokens int) int {
	n := 0
	for _, group := range p.groups {
		n += p.groupBlocks(group, tokens)
	}
	return n
}

// groupBlocks returns the blocks of a request of so many tokens in a group (max_memory_usage_bytes of each spec in
// v1/kv_cache_interface.py).
func (p *planner) groupBlocks(group []int, tokens int) int {
	most := 0
	for _, n := range group {
		most = max(most, p.layerBlocks(p.layers[n], tokens))
	}
	return most
}

func (p *planner) layerBlocks(l vllmLayer, tokens int) int {
	switch l.kind {
	case Sliding:
		retained := l.window - 1 + max(0, p.DraftModules-1)
		return ceil(min(retained+p.inFlight(), tokens), l.block) + 1
	case Chunked:
		return ceil(min(l.window+p.inFlight(), tokens), l.block)
	case Cross:
		return ceil(l.source, l.block)
	case Recurrent:
		n := 1 + p.DraftTokens
		if !p.NoPrefixCaching {
			n++
			if p.checkpoints() {
				n++
			}
		}
		return n
	}
	return ceil(tokens, l.block)
}

// inFlight returns the tokens that are scheduled but not settled, whose blocks a window still holds: those of the steps that
// run at the same time (config/vllm.py, max_concurrent_batches, since 0.26 part of the rule).
func (p *planner) inFlight() int {
	batches := p.Pipeline
	switch {
	case p.before("0.26"):
		batches = 1
	case !p.NoAsync:
		batches++
	}
	return int(min(int64(batches)*int64(p.MaxBatchedTokens), maxSetting))
}

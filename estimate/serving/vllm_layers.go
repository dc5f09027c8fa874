package serving

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// kvType says how vLLM stores keys and values of a --kv-cache-dtype.
type kvType struct {
	bits  int   // of an element; 0 means those of the model's type
	group int   // elements that share a scale of one byte; 0 means none
	scale int   // bytes of a scale for each token, head and side
	row   int64 // bytes of a token's latent, scales included, whatever its size; 0 means that it has no format of its own
}

// kvTypes are the types of 0.33.0 (v1/attention/backends/triton_attn.py and flashinfer.py, customize_spec, and
// mla/flashmla_sparse.py). Scales of a whole layer are no part of the cache.
var kvTypes = map[string]kvType{
	"auto": {}, "float16": {bits: 16}, "bfloat16": {bits: 16},
	"fp8": {bits: 8}, "fp8_e4m3": {bits: 8}, "fp8_e5m2": {bits: 8}, "fp8_inc": {bits: 8},
	"int8_per_token_head": {bits: 8, scale: 4}, "fp8_per_token_head": {bits: 8, scale: 4}, "int4_per_token_head": {bits: 4, scale: 4},
	"nvfp4": {bits: 4, group: 16}, "nvfp4_4over6": {bits: 4, group: 16},
	"fp8_ds_mla": {row: 656}, "nvfp4_ds_mla": {row: 352},
}

// side returns the bytes of one token's key or value in one head of this size.
func (k kvType) side(size int) int64 {
	n := int64(size)*int64(k.bits)/8 + int64(k.scale)
	if k.group > 0 {
		n += int64(size / k.group)
	}
	return n
}

// kernelBlocks are the fewest tokens of a block that attention backends accept, where that is not 16
// (get_supported_kernel_block_sizes of v1/attention/backends).
var kernelBlocks = map[string]int{
	"FLASHMLA": 64, "FLASHMLA_SPARSE": 64, "FLASH_ATTN_MLA_SPARSE": 64, "FLASHINFER_MLA": 32, "TOKENSPEED_MLA": 32, "CUTLASS_MLA": 128, "CPU_ATTN": 32, "HPC_ATTN": 64,
}

// defaultBlock is CacheConfig.DEFAULT_BLOCK_SIZE.
const defaultBlock = 16

// vllmLayer is a spec as vLLM keeps it on one GPU. Layers whose kind, block, page and row are equal can share a group.
type vllmLayer struct {
	kind   string
	block  int
	row    int64 // bytes of a token, or of a state
	page   int64 // bytes of a block, padding included
	window int
	source int
	heads  int
	size   int
}

// planner plans a model's cache.
type planner struct {
	VLLM
	specs     []CacheSpec
	kv        kvType
	kvBlock   int   // cache_config.block_size
	statePage int64 // bytes to which states are padded; 0 means that they are not
	layers    []vllmLayer
	numbers   []int   // of the layers in the model
	groups    [][]int // numbers of layers
}

// planner checks the settings and groups the layers.
func (v VLLM) planner(specs []CacheSpec) (*planner, error) {
	p := &planner{VLLM: v, specs: slices.Concat(specs, v.Draft)}
	for i := range v.Draft {
		p.specs[len(specs)+i].Layer += p.modelLayers(specs)
	}
	p.Tensor, p.Pipeline = max(1, p.Tensor), max(1, p.Pipeline)
	p.DType, p.MaxBatchedTokens = cmp.Or(p.DType, alloc.BFloat16), cmp.Or(p.MaxBatchedTokens, 8192)
	p.KVType, p.Capability = cmp.Or(p.KVType, "auto"), cmp.Or(p.Capability, "9.0")
	if err := p.check(); err != nil {
		return nil, err
	}
	if p.kvBlock = cmp.Or(p.Block, p.preferredBlock()); p.has(Recurrent) && (p.has(Full) || p.has(Latent)) {
		if err := p.alignBlock(); err != nil {
			return nil, err
		}
	}
	for _, s := range p.specs {
		if err := p.add(s); err != nil {
			return nil, err
		}
	}
	return p, p.group()
}

// check returns what is wrong with the settings.
func (p *planner) check() error {
	var known bool
	p.kv, known = kvTypes[p.KVType]
	if p.KVType == "auto" {
		p.kv.bits = p.DType.Bits()
	}
	switch {
	case !known:
		return fmt.Errorf("KVType is %q: want auto or one of vLLM's --kv-cache-dtype, such as fp8 or nvfp4", p.KVType)
	case len(p.specs) == 0:
		return errors.New("no layer keeps anything: there is no cache to plan")
	case len(p.specs) > maxSpecs:
		return fmt.Errorf("%d layers: want at most %d", len(p.specs), maxSpecs)
	case min(p.MaxBatchedTokens, p.Tensor, p.Pipeline, p.DraftTokens+1, p.DraftModules+1, p.Block+1, p.Blocks+1, p.Layers+1) < 1:
		return errors.New("a setting is negative: want 0 or more")
	case max(p.MaxModelLen, p.MaxBatchedTokens, p.Tensor, p.Pipeline, p.DraftTokens, p.DraftModules, p.Block, p.Blocks, p.Layers) > maxSetting:
		return fmt.Errorf("a setting is above %d", maxSetting)
	case p.Pipeline > maxStages:
		return fmt.Errorf("a pipeline of %d stages: want at most %d", p.Pipeline, maxStages)
	}
	for _, s := range p.specs {
		if err := p.checkSpec(s); err != nil {
			return fmt.Errorf("layer %d, %s: %w", s.Layer, cmp.Or(s.Kind, "of no kind"), err)
		}
	}
	return nil
}

// The most of a setting, of layers, of stages, and of the bytes of a block in a layer.
const (
	maxSetting = 1 << 27
	maxSpecs   = 1 << 12
	maxStages  = 1 << 10
	maxPage    = 1 << 36
)

// checkSpec returns what is wrong with a spec, or why vLLM does not run it.
func (p *planner) checkSpec(s CacheSpec) error {
	sizes := []int{s.KVHeads, s.HeadSize, s.ValueSize, s.Window, s.Source, s.Latent, s.Index, s.Channels, s.Groups, s.GroupChannels, s.Kernel, s.StateHeads, s.HeadState}
	switch {
	case s.Layer < 0 || s.Layer > maxSetting || slices.Min(sizes) < 0 || slices.Max(sizes) > maxSetting || int64(s.KVHeads)*int64(s.HeadSize+s.ValueSize) > maxSetting:
		return errors.New("a size is negative or too large")
	case s.Kind == Recurrent && (s.StateHeads%p.Tensor != 0 || p.channels(s)%p.Tensor != 0):
		return fmt.Errorf("a tensor parallelism of %d does not divide its %d heads and %d channels", p.Tensor, s.StateHeads, s.Channels)
	case s.Kind == Recurrent && s.Channels > 0 && s.Kernel > 0, s.Kind == Latent && s.Latent > 0 && p.kv.scale == 0 && p.kv.group == 0:
		return nil
	case s.Kind == Latent && s.Latent > 0, s.Kind != Latent && s.Kind != Recurrent && p.kv.row > 0:
		return fmt.Errorf("a KVType of %s is not for this kind", p.KVType)
	case s.Kind == Cross && s.Source == 0:
		return errors.New("vLLM serves no model that reads a text in an encoder")
	case (s.Kind == Full || s.Kind == Cross || s.Window > 0 && (s.Kind == Sliding || s.Kind == Chunked)) && min(s.KVHeads, s.HeadSize, s.ValueSize) > 0:
		return nil
	}
	return errors.New("its kind is unknown, or sizes are missing")
}

func (p *planner) has(kind string) bool {
	return slices.ContainsFunc(p.specs, func(s CacheSpec) bool { return s.Kind == kind })
}

// preferredBlock returns the tokens of a block that the attention backend asks for (platforms/cuda.py,
// _get_backend_priorities, and AttentionBackend.get_preferred_block_size).
func (p *planner) preferredBlock() int {
	backend := strings.ToUpper(p.Backend)
	major, _, _ := strings.Cut(p.Capability, ".")
	switch latent := p.has(Latent); {
	case backend == "FLASH_ATTN" && major == "10" && slices.ContainsFunc(p.specs, func(s CacheSpec) bool { return s.Kind == Full && s.HeadSize == 256 }):
		return 128 // FlashAttention 4
	case backend != "" || !latent:
	case slices.ContainsFunc(p.specs, func(s CacheSpec) bool { return s.Index > 0 }):
		backend = "FLASHMLA_SPARSE"
	case major == "9" && p.kv.bits == 8:
		backend = "FLASHMLA"
	case major == "10":
		backend = "FLASHINFER_MLA"
	}
	return cmp.Or(kernelBlocks[backend], defaultBlock)
}

// alignBlock enlarges the block of a model with recurrent states until its page holds a state (platforms/interface.py,
// _align_hybrid_block_size).
func (p *planner) alignBlock() error {
	token, state := int64(0), int64(0)
	for _, s := range p.specs {
		switch {
		case s.Kind == Recurrent:
			state = max(state, p.stateBytes(s))
		case token == 0 && (s.Kind == Full || s.Kind == Latent):
			token = p.tokenBytes(s)
		}
	}
	unit := p.kvBlock
	if p.has(Latent) && !p.before("0.27") {
		unit = max(unit, 128)
	}
	if p.checkpoints() {
		unit = lcm(unit, 64)
	}
	if unit > maxSetting || token == 0 {
		return fmt.Errorf("a block of %d tokens: want at most %d", unit, maxSetting)
	}
	block := int64(unit) * ceil(state, int64(unit)*token)
	if block > maxSetting {
		return fmt.Errorf("a state of %d bytes: its block would have more than %d tokens", state, maxSetting)
	}
	p.kvBlock = max(p.kvBlock, int(block))
	p.statePage = int64(p.kvBlock) * token
	return nil
}

// checkpoints reports whether FlashInfer's kernel of the gated delta net saves states within a prompt, one more block
// for each request (model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py, since 0.31).
func (p *planner) checkpoints() bool {
	if p.NoPrefixCaching || p.before("0.31") {
		return false
	}
	major, _, _ := strings.Cut(p.Capability, ".")
	return (major == "9" || major == "10" || major == "12") &&
		!slices.ContainsFunc(p.specs, func(s CacheSpec) bool { return s.Kind == Recurrent && s.Mixer != "delta" })
}

// tokenBytes returns the bytes of a token in a layer of one GPU (v1/kv_cache_interface.py). Each GPU has at least one head of keys
// and values, and all of a latent.
func (p *planner) tokenBytes(s CacheSpec) int64 {
	if s.Kind != Latent {
		return int64(p.heads(s)) * (p.kv.side(s.HeadSize) + p.kv.side(s.ValueSize))
	}
	if p.kv.row > 0 {
		return p.kv.row
	}
	if s.Index > 0 && p.kv.bits == 8 && strings.HasPrefix(p.Capability, "9") {
		return kvTypes["fp8_ds_mla"].row // to FlashMLA's kernel for an indexer fp8 means this
	}
	return p.kv.side(s.Latent)
}

func (p *planner) heads(s CacheSpec) int { return max(1, s.KVHeads/p.Tensor) }

// stateBytes returns the bytes of a recurrent layer's state on one GPU (model_executor/layers/mamba/mamba_utils.py). With drafts
// the convolution keeps the inputs of drafted tokens too.
func (p *planner) stateBytes(s CacheSpec) int64 {
	inputs := s.Kernel - 1
	if s.Mixer != "mamba" {
		inputs += p.DraftTokens
	}
	state := cmp.Or(p.StateType, s.StateType, p.DType)
	if s.Mixer == "kda" {
		state = cmp.Or(p.StateType, s.StateType, alloc.Float32)
	}
	return int64(p.channels(s)/p.Tensor)*int64(inputs)*int64(p.DType.Bits())/8 + int64(s.StateHeads/p.Tensor)*int64(s.HeadState)*int64(state.Bits())/8
}

// channels returns the channels of all GPUs: groups that do not divide are repeated, one for each GPU.
func (p *planner) channels(s CacheSpec) int {
	if s.Groups > 0 && s.Groups%p.Tensor != 0 {
		return s.Channels + (p.Tensor-s.Groups)*s.GroupChannels
	}
	return s.Channels
}

// add appends a spec as vLLM keeps it, and its indexer's keys.
func (p *planner) add(s CacheSpec) error {
	l := vllmLayer{kind: s.Kind, block: p.kvBlock, window: s.Window, source: s.Source}
	switch s.Kind {
	case Recurrent:
		l.row = p.stateBytes(s)
		if l.page = max(l.row, p.statePage); p.NoPrefixCaching {
			l.block = max(1, p.MaxModelLen)
		}
	case Latent:
		l.row = p.tokenBytes(s)
		l.page = int64(l.block) * l.row
	default:
		l.heads, l.size, l.row = p.heads(s), s.HeadSize, p.tokenBytes(s)
		l.page = int64(l.block) * l.row
	}
	p.layers, p.numbers = append(p.layers, l), append(p.numbers, s.Layer)
	if l.page < 1 || l.page > maxPage {
		return fmt.Errorf("layer %d: a block takes %d bytes: want 1 to %d", s.Layer, l.page, int64(maxPage))
	}
	if s.Index > 0 { // a byte for each element, and four bytes of scale for each 128
		l.row = int64(s.Index + s.Index/128*4)
		l.page = int64(l.block) * l.row
		p.layers, p.numbers = append(p.layers, l), append(p.numbers, s.Layer)
	}
	return nil
}

// modelLayers returns the number of the model's layers.
func (p *planner) modelLayers(specs []CacheSpec) int {
	n := p.Layers
	for _, s := range specs {
		n = max(n, s.Layer+1)
	}
	return n
}

func ceil[T int | int64](n, by T) T { return (n + by - 1) / by }

func lcm(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

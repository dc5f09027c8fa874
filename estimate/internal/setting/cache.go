package setting

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// KVConfig is estimate.KVConfig.
type KVConfig struct {
	Batch         int
	ContextLength int
	Layers        int
	KVHeads       int
	HeadSize      int
	ValueSize     int
	Latent        int
	Window        int
	Full          int
	FullKVHeads   int
	FullHeadSize  int
	Fixed         int
	FixedType     alloc.DType
	States        int
	Prompt        int
	Static        bool
	DType         alloc.DType
	Keys          string
	Values        string
}

// blockTypes are the quantized types in which llama.cpp can store keys and values. A block of iq4_nl takes as much as one of
// q4_0.
var blockTypes = map[string]Blocks{"q8_0": Q8_0, "q5_1": Q5_1, "q5_0": Q5_0, "q4_1": Q4_1, "q4_0": Q4_0, "iq4_nl": Q4_0}

// blocksOf returns how a type is stored that is a quantized one or an element type; zero for none.
func blocksOf(name, word string) (Blocks, error) {
	if b, ok := blockTypes[word]; ok || word == "" {
		return b, nil
	}
	d, err := alloc.ParseDType(word)
	if err != nil {
		return Blocks{}, fmt.Errorf("%s is %q: want one of q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl, or an element type", name, word)
	}
	return Blocks{max(1, 8/d.Bits()), max(1, d.Bits()/8)}, nil
}

// Blocks says how a quantized type is stored: each block of Elements takes Bytes, scales included.
// The zero value means no quantized type.
type Blocks struct{ Elements, Bytes int }

// The quantized types in which llama.cpp can store keys and values (ggml/src/ggml-common.h). A head
// of 64 elements takes 68 bytes in Q8_0.
var (
	Q8_0 = Blocks{32, 34}
	Q5_1 = Blocks{32, 24}
	Q5_0 = Blocks{32, 22}
	Q4_1 = Blocks{32, 20}
	Q4_0 = Blocks{32, 18}
)

// CacheBytes is the memory of a key/value cache by what it is for.
type CacheBytes struct {
	Keys, Values alloc.Bytes // of tokens; a latent counts as keys
	Fixed        alloc.Bytes // does not grow with the context length
}

// All is the sum.
func (k CacheBytes) All() alloc.Bytes { return k.Keys + k.Values + k.Fixed }

// KVCache returns the memory of the keys and values of all tokens: layers x batch x tokens x KV heads elements of HeadSize
// for keys and of ValueSize for values, or layers x batch x tokens x latent elements if Latent is set. Layers
// with a Window keep no more tokens than that, and those of the last Prompt. The error says what is wrong with the
// configuration.
func KVCache(c KVConfig) (CacheBytes, error) {
	keys, values, err := c.check()
	var k CacheBytes
	if err == nil {
		k.Fixed, err = c.fixed()
	}
	for _, g := range c.groups() {
		var each CacheBytes
		if err == nil {
			each, err = c.bytes(keys, values, g)
		}
		k.Keys, k.Values = min(k.Keys+each.Keys, MaxTotal+1), min(k.Values+each.Values, MaxTotal+1)
	}
	if err == nil && max(k.Keys, k.Values, k.Fixed, k.All()) > MaxTotal {
		err = fmt.Errorf("it takes more than %v", alloc.Bytes(MaxTotal))
	}
	if err != nil {
		return CacheBytes{}, fmt.Errorf("estimate the key/value cache: %w", err)
	}
	return k, nil
}

// Moments is the memory of a key/value cache over time.
type Moments struct {
	Prompt CacheBytes  // when the prompt has run
	Next   CacheBytes  // when the next token has run too
	Peak   alloc.Bytes // the most while that token runs, at most
}

// CacheMoments returns the memory of a cache to which tokens are appended as DynamicCache of transformers does it
// (cache_utils.py of 5.24). A layer concatenates old and new keys and values, and then frees the old ones. A layer with
// a window keeps a view of the result, so that all tokens of a prompt stay until the next token. Without a Prompt the
// cache is one that is allocated ahead, and never changes its size.
func CacheMoments(c KVConfig) (Moments, error) {
	now, err := KVCache(c)
	m := Moments{Prompt: now, Next: now, Peak: now.All()}
	if err != nil || c.Prompt == 0 || c.Static {
		return m, err
	}
	next := c
	next.ContextLength, next.Prompt = min(c.ContextLength, MaxField-1)+1, 1
	if m.Next, err = KVCache(next); err != nil {
		return m, err
	}
	keys, values, err := next.check()
	m.Peak = m.Prompt.Fixed
	twice := alloc.Bytes(0)
	before, after := c.groups(), next.groups()
	for i, g := range after {
		if err != nil || g.layers == 0 {
			continue
		}
		appended := g
		g.tokens = max(g.tokens, before[i].tokens) // layers change one after another
		if c.Prompt < c.ContextLength {            // pieces of the prompt were appended too
			appended = g
		}
		var all, one CacheBytes
		if all, err = c.bytes(keys, values, g); err == nil {
			appended.layers = 1
			one, err = c.bytes(keys, values, appended)
		}
		m.Peak, twice = m.Peak+all.All(), max(twice, one.All())
	}
	m.Peak += twice
	return m, err
}

// fixed returns the part that does not grow with the context length.
func (c KVConfig) fixed() (alloc.Bytes, error) {
	n, err := alloc.Shape{c.Batch, c.Fixed}.Bytes(Or(c.FixedType, Or(c.DType, alloc.Float16)))
	if err != nil {
		return 0, err
	}
	states, err := alloc.Shape{c.Batch, c.States}.Bytes(alloc.Float32)
	return min(n, MaxTotal+1) + min(states, MaxTotal+1), err
}

// kvGroup is a number of layers that keep the same number of tokens, of the same size.
type kvGroup struct{ layers, tokens, heads, key, value int }

// groups returns the layers that attend to all tokens, and those with a window.
func (c KVConfig) groups() [2]kvGroup {
	all := kvGroup{c.Layers, c.ContextLength, c.KVHeads, c.HeadSize, Or(c.ValueSize, c.HeadSize)}
	if c.Latent > 0 {
		all.heads, all.key, all.value = 1, c.Latent, 0
	}
	if c.Window <= 0 {
		return [2]kvGroup{all}
	}
	windowed := all
	all.layers = c.Full
	windowed.layers -= c.Full
	prompt := 1
	if !c.Static {
		prompt = max(1, min(c.Prompt, c.ContextLength))
	}
	windowed.tokens = min(c.ContextLength-prompt, c.Window-1) + prompt
	all.heads = Or(c.FullKVHeads, all.heads)
	if c.FullHeadSize > 0 {
		all.key, all.value = c.FullHeadSize, c.FullHeadSize
	}
	return [2]kvGroup{all, windowed}
}

// bytes returns the size of a group's keys and values.
func (c KVConfig) bytes(keys, values Blocks, g kvGroup) (k CacheBytes, err error) {
	shape := alloc.Shape{c.Batch, g.layers, g.tokens, g.heads, g.key}
	if k.Keys, err = c.tensor(keys, shape); err == nil && c.Latent == 0 {
		shape[4] = g.value
		k.Values, err = c.tensor(values, shape)
	}
	return k, err
}

// tensor returns the size of a tensor of keys or values.
func (c KVConfig) tensor(b Blocks, shape alloc.Shape) (alloc.Bytes, error) {
	if b == (Blocks{}) {
		n, err := shape.Bytes(Or(c.DType, alloc.Float16))
		return min(n, MaxTotal+1), err
	}
	n, err := shape.Elements()
	if err != nil || n > MaxTotal/int64(b.Bytes) {
		return MaxTotal + 1, err
	}
	return alloc.Bytes(n / int64(b.Elements) * int64(b.Bytes)), nil
}

// check returns how keys and values are stored, and what is wrong with the configuration.
func (c KVConfig) check() (keys, values Blocks, err error) {
	for _, f := range []struct {
		name         string
		value, least int
	}{
		{"Batch", c.Batch, 1}, {"ContextLength", c.ContextLength, 1}, {"Layers", c.Layers, 1}, {"Window", c.Window, 0},
		{"Full", c.Full, 0}, {"FullKVHeads", c.FullKVHeads, 0}, {"FullHeadSize", c.FullHeadSize, 0}, {"Fixed", c.Fixed, 0}, {"States", c.States, 0}, {"Prompt", c.Prompt, 0}, {"Latent", c.Latent, 0}, {"ValueSize", c.ValueSize, 0}, {"KVHeads", c.KVHeads, 1}, {"HeadSize", c.HeadSize, 1},
	} {
		if none := c.Fixed+min(c.States, 1) > 0 && (f.name == "Layers" || f.name == "KVHeads" || f.name == "HeadSize"); none && f.value == 0 {
			continue // nothing grows with the context length
		}
		if f.value < f.least && (c.Latent == 0 || f.name != "KVHeads" && f.name != "HeadSize") {
			return keys, values, fmt.Errorf("%s is %d: want %d or more", f.name, f.value, f.least)
		}
	}
	if keys, err = blocksOf("Keys", c.Keys); err == nil {
		values, err = blocksOf("Values", Or(c.Values, c.Keys))
	}
	for _, g := range c.groups() {
		if err == nil {
			err = keys.check("Keys", g.heads*min(g.key, MaxField))
		}
		if err == nil {
			err = values.check("Values", g.heads*min(g.value, MaxField))
		}
	}
	if err == nil && c.Full > c.Layers {
		err = fmt.Errorf("of %d Layers, Full is %d: want at most as many", c.Layers, c.Full)
	}
	return keys, values, err
}

// check returns an error unless the blocks of keys or values divide the elements of a token.
func (b Blocks) check(name string, row int) error {
	if b != (Blocks{}) && row%b.Elements != 0 {
		return fmt.Errorf("%s in blocks of %d elements do not divide the %d of a token", name, b.Elements, row)
	}
	return nil
}

// Shard returns one device's part. Tensor parallelism divides the heads, so that each device has at
// least one, and a pipeline divides the layers. Each device has the whole latent.
func (c KVConfig) Shard(s Sharding) KVConfig {
	c.KVHeads = int(Part(int64(c.KVHeads), s.Tensor))
	c.FullKVHeads = int(Part(int64(c.FullKVHeads), s.Tensor))
	c.Layers = int(Part(int64(c.Layers), s.Pipeline))
	c.Fixed = int(Part(Part(int64(c.Fixed), s.Tensor), s.Pipeline))
	c.States = int(Part(Part(int64(c.States), s.Tensor), s.Pipeline))
	c.Full = int(Part(int64(c.Full), s.Pipeline))
	return c
}

// LayerSizes is the memory of a model's weights by what llama.cpp calls layers: each block is one,
// and the output is one more. A GPU holds some of them, and the memory of the CPU the rest.
type LayerSizes struct {
	Input  alloc.Bytes   // embeddings, which stay on the CPU
	Blocks []alloc.Bytes // in their order
	Output alloc.Bytes   // the last norm and the head
	Tied   alloc.Bytes   // the part of Output that is a copy of the embedding
	// PerLayer is the part of Input that each block has embeddings of its own in (Gemma 3n and 4). Some builds put it on the
	// GPU: b8680 did with Metal.
	PerLayer alloc.Bytes
}

// Layers returns the number of layers that a GPU can hold, which llama.cpp prints as "offloaded N/N
// layers to GPU".
func (s LayerSizes) Layers() int { return len(s.Blocks) + 1 }

// OnGPU returns how much of the weights a GPU holds with n layers on it (llama.cpp's
// --n-gpu-layers), and how much stays in the memory of the CPU. The output goes to the GPU first,
// then the blocks from the last to the first (llama.cpp, src/llama-model.cpp, load_tensors, since
// pull request 18148 of December 2025; before that the output came last). An n above Layers means
// all of them; one below 0 means none.
func (s LayerSizes) OnGPU(n int) (gpu, cpu alloc.Bytes) {
	first := s.first(n)
	cpu = s.Input
	for _, size := range s.Blocks[:first] {
		cpu += size
	}
	for _, size := range s.Blocks[first:] {
		gpu += size
	}
	if n < 1 {
		return gpu, cpu + s.Output - s.Tied
	}
	return gpu + s.Output, cpu
}

// first returns the number of the first block on the GPU.
func (s LayerSizes) first(n int) int { return min(len(s.Blocks), max(0, s.Layers()-n)) }

// GpuPart is the memory that one GPU holds, and of how many blocks.
type GpuPart struct {
	Weights alloc.Bytes
	Cache   CacheBytes
	Blocks  int
}

// Split divides the first n layers among GPUs. Each GPU gets the layers whose number, divided by n,
// is below the sum of the proportions up to its own (llama.cpp, src/llama-model.cpp, load_tensors).
func (s LayerSizes) Split(n int, proportions []float64) []GpuPart {
	if len(proportions) == 0 {
		proportions = []float64{1}
	}
	all := 0.0
	for _, p := range proportions {
		all += p
	}
	parts := make([]GpuPart, len(proportions))
	gpu, below := 0, proportions[0]/all
	for i := range n {
		for gpu < len(parts)-1 && float64(i)/float64(n) >= below {
			gpu++
			below += proportions[gpu] / all
		}
		if block := s.Layers() - n + i; block < len(s.Blocks) {
			parts[gpu].Blocks++
			parts[gpu].Weights += s.Blocks[block]
		} else {
			parts[gpu].Weights += s.Output
		}
	}
	return parts
}

// checkShares returns an error if the proportions are negative, not numbers, or all 0.
func checkShares(proportions []float64) error {
	all := 0.0
	for _, p := range proportions {
		if !(p >= 0 && p <= MaxField) {
			return wrong("Split: a share of %v: want 0 or more", p)
		}
		all += p
	}
	if len(proportions) > 0 && all == 0 || len(proportions) > maxGPUs {
		return wrong("Split: shares %v: want one more than 0, and at most %d", proportions, maxGPUs)
	}
	return nil
}

// maxGPUs bounds the number of proportions of Split.
const maxGPUs = 1024

// Last returns the cache of the last blocks, where the model has as many blocks as of.
func (c KVConfig) Last(blocks, of int) CacheBytes {
	part := func(n int) int { return int((int64(n)*int64(blocks) + int64(of) - 1) / int64(of)) }
	c.Layers, c.Full, c.Fixed, c.States = part(c.Layers), part(c.Full), part(c.Fixed), part(c.States)
	if blocks == 0 {
		return CacheBytes{}
	}
	k, err := KVCache(c)
	if err != nil { // it is a part of all blocks, which are valid
		return CacheBytes{}
	}
	return k
}

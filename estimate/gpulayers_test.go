package estimate_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// What llama.cpp printed as "model buffer size" of the GPU and of the CPU, and as "KV buffer size".
func TestGPULayersAsLlamaCppPrints(t *testing.T) {
	const kv = 8 * 128 * 2 * 2 // bytes of a token in a block: eight heads of 128, keys and values in float16
	for _, c := range []struct {
		name         string // and source
		model        family.Transformer
		quantization string
		layers       int // on the GPU
		gpu, cpu     float64
		output       bool // on the GPU too, as it is since pull request 18148
		context      int
		cache        alloc.Bytes // on the GPU
	}{
		{"Llama 3.2 3B, 29 of 29 layers, Vulkan on an RX 6700 XT, 2025",
			family.Transformer{Vocab: 128256, Hidden: 3072, Blocks: 28, Heads: 24, KVHeads: 8, FFN: 8192, Tied: true},
			"Q4_K_M", 29, 1918.35, 308.23, true, 4096, 28 * 4096 * kv},
		{"Pythia 1.4B, 25 of 25 layers, llama.cpp's CI on an M4",
			family.Transformer{Family: family.GPTNeoX, Vocab: 50304, Hidden: 2048, Blocks: 24, Heads: 16, FFN: 8192, Attention: family.Attention{RotaryDim: 32}, Bias: true, Parallel: true},
			"F16", 25, 2502.97, 196.50, true, 2048, 24 * 2048 * 16 * 128 * 2 * 2},
		{"Mistral 7B, the last 20 of 32 blocks, CUDA on an RTX 4060 Laptop, EduHPC 2025",
			family.Transformer{Vocab: 32000, Hidden: 4096, Blocks: 32, Heads: 32, KVHeads: 8, FFN: 14336},
			"Q4_K_M", 21, 2495.31, 0, false, 768, 20 * 768 * kv},
		{"DeepSeek R1 0528 Qwen3 8B, the last 19 of 36 blocks, CUDA, LM Studio, 2025-07",
			family.Transformer{Vocab: 151936, Hidden: 4096, Blocks: 36, Heads: 32, KVHeads: 8, HeadSize: 128, FFN: 12288, Attention: family.Attention{QKNorm: layer.NormHeads}},
			"Q8_0", 20, 3715.11, 0, false, 131072, 19 * 131072 * kv},
	} {
		t.Run(c.name, func(t *testing.T) {
			stored, err := llamacpp.Quantization(c.quantization).Stored(layer.Public(c.model.Layers()))
			require.NoError(t, err)
			sizes := config(stored).Sizes
			assert.Equal(t, c.model.Blocks+1, sizes.Layers())
			gpu, cpu := sizes.OnGPU(c.layers)
			if !c.output {
				gpu -= sizes.Output
			}
			mib := func(n alloc.Bytes) float64 { return float64(n) / float64(alloc.MiB) }
			assert.InDelta(t, c.gpu, mib(gpu), 0.02)
			if c.cpu > 0 { // else the whole file is mapped there
				assert.InDelta(t, c.cpu, mib(cpu), 0.02)
			}
			r := model(t, layer.Public(c.model.Layers()), estimate.Tokens(1, 1), computedIn(alloc.MiB), stored,
				gpuLayers(c.layers), estimate.KVConfig(c.model.Cache(1, c.context, 0)))
			m := r.Inference
			assert.Equal(t, c.cache, m.Cache)
			whole, err := estimate.KVCache(estimate.KVConfig(c.model.Cache(1, c.context, 0)))
			require.NoError(t, err)
			assert.Equal(t, cpu+whole-c.cache, m.Host)
			assert.Equal(t, m.Weights+m.Buffers+m.Cache+alloc.MiB, m.Peak.Bytes)
			assert.Equal(t, []int{c.layers, c.model.Blocks + 1}, []int{r.GPULayers, r.ModelLayers})
		})
	}
}

// llama.cpp prints "creating SWA KV cache, size = 1536 cells" of Gemma 4 12B, and 480 MiB of these 40 layers.
func TestCellsAsLlamaCppPrints(t *testing.T) {
	gemma := estimate.KVConfig{Batch: 1, ContextLength: 32700, Layers: 48, KVHeads: 8, HeadSize: 256, Window: 1024, Full: 8}
	cells := family.Server{}.Cells(setting.KVConfig(gemma))
	assert.Equal(t, []int{32768, 1536}, []int{cells.ContextLength, cells.Window})
	whole, err := estimate.KVCache(estimate.KVConfig(cells))
	require.NoError(t, err)
	assert.Equal(t, 2048*alloc.MiB+480*alloc.MiB, whole)
	assert.Equal(t, 3072, family.Server{Batch: 2048}.Cells(setting.KVConfig(gemma)).Window)
	gemma.Window, gemma.ContextLength = math.MaxInt32, math.MaxInt32
	cells = family.Server{Batch: math.MaxInt32}.Cells(setting.KVConfig(gemma))
	assert.Positive(t, cells.ContextLength)
	assert.Positive(t, cells.Window)
	gemma.Window = 0
	assert.Zero(t, family.Server{}.Cells(setting.KVConfig(gemma)).Window)
}

// What llama.cpp prints of models whose layers have a window but every sixth: of each sequence apart ("8192 cells (4/4 seqs)",
// SWA 1536), and of one cache for all, whose window is as often as there are sequences and has room for a batch once
// (src/llama-kv-cache-iswa.cpp).
func TestCellsOfSeveralSequences(t *testing.T) {
	small := estimate.KVConfig{Batch: 4, ContextLength: 8192, Layers: 6, KVHeads: 4, HeadSize: 64, Window: 1024, Full: 1, Fixed: 100, DType: alloc.Float16}
	apart, err := estimate.KVCache(estimate.KVConfig(family.Server{}.Cells(setting.KVConfig(small))))
	require.NoError(t, err)
	assert.Equal(t, 62*alloc.MiB, apart-4*4*100)
	cells := family.Server{Slots: "unified"}.Cells(setting.KVConfig(small))
	assert.Equal(t, setting.KVConfig{Batch: 1, ContextLength: 4 * 8192, Layers: 6, KVHeads: 4, HeadSize: 64, Window: 4*1024 + 512, Full: 1, Fixed: 4 * 100, FixedType: alloc.Float32, DType: alloc.Float16}, cells)
	unified, err := estimate.KVCache(estimate.KVConfig(cells))
	require.NoError(t, err)
	assert.Equal(t, apart-5*(4*1536-4608)*alloc.KiB, unified)
	small.Batch, small.Window = math.MaxInt32, math.MaxInt32
	assert.Positive(t, family.Server{Slots: "unified"}.Cells(setting.KVConfig(small)).Window)
}

func TestGPULayersFromNoneToAll(t *testing.T) {
	m := family.Transformer{Vocab: 512, Hidden: 64, Blocks: 4, Heads: 4, Tied: true}
	stored, err := llamacpp.Quantization("F16").Stored(layer.Public(m.Layers()))
	require.NoError(t, err)
	report := func(opts ...estimate.Option) *estimate.Report {
		return model(t, layer.Public(m.Layers()), append(opts, estimate.Tokens(1, 8), computedIn(alloc.MiB), stored, estimate.KVConfig(m.Cache(1, 32, 0)))...)
	}
	all := report()
	assert.EqualValues(t, 512*64*2, all.Inference.Host, "the embedding")
	assert.Equal(t, all.Inference, report(gpuLayers(100)).Inference)
	sum := all.Inference.Weights + all.Inference.Cache
	before := alloc.Bytes(-1)
	for n := range 6 {
		r := report(gpuLayers(n))
		held := r.Inference.Weights + r.Inference.Cache
		assert.Greater(t, held, before)
		before = held
		assert.GreaterOrEqual(t, held+r.Inference.Host, sum)
		assert.Less(t, held+r.Inference.Host, sum+2*512*64*2)
	}
	none := report(gpuLayers(0))
	assert.Zero(t, none.Inference.Weights+none.Inference.Cache)
	assert.Equal(t, none.Inference, report(gpuLayers(-1)).Inference)
	assert.Equal(t, alloc.GiB, report(option(func(c *setting.Config) { c.Projector = alloc.GiB })).Inference.Weights-all.Inference.Weights)
	assert.Greater(t, report(gpuLayers(3)).Inference.Peak.Upper, report(gpuLayers(4)).Inference.Peak.Bytes, "older releases have a further block there")
}

// Layers of several GPUs, as llama.cpp divides them.
func TestSplit(t *testing.T) {
	m := family.Transformer{Vocab: 512, Hidden: 64, Blocks: 40, Heads: 4}
	stored, err := llamacpp.Quantization("F16").Stored(layer.Public(m.Layers()))
	require.NoError(t, err)
	sizes := config(stored).Sizes
	report := func(opts ...estimate.Option) estimate.Memory {
		return model(t, layer.Public(m.Layers()), append(opts, estimate.Tokens(1, 8), computedIn(alloc.MiB), stored, estimate.KVConfig(m.Cache(1, 256, 0)))...).Inference
	}
	one := report()
	assert.Equal(t, one, report(splitOver(1)))
	for _, c := range []struct {
		shares []float64
		blocks int // of the GPU with most
		output bool
	}{
		{[]float64{1, 1}, 21, false}, // layers 0 to 20, and 21 to 40, of which the last is the output
		{[]float64{3, 1}, 31, false},
		{[]float64{12.2, 28.8}, 27, true}, // as 13 and 28 of 41
		{[]float64{0, 1}, 40, true},
		{[]float64{1, 1, 1, 1}, 11, false},
	} {
		got := report(splitOver(c.shares...))
		want := alloc.Bytes(c.blocks) * sizes.Blocks[0]
		if c.output {
			want += sizes.Output
		}
		assert.Equal(t, want, got.Weights, c.shares)
		assert.Equal(t, one.Cache*alloc.Bytes(c.blocks)/40, got.Cache, c.shares)
		assert.Equal(t, one.Host, got.Host, "what is on another GPU is not on the CPU")
	}
	some := report(splitOver(1, 1), gpuLayers(21))
	assert.Equal(t, 11*sizes.Blocks[0], some.Weights)
	assert.Equal(t, one.Cache/2, some.Host-sizes.Input-20*sizes.Blocks[0])
	for want, shares := range map[string][]float64{"share of -1": {1, -1}, "want one more than 0": {0, 0}, "share of NaN": {math.NaN()}} {
		_, err := estimate.Model(layer.Public(m.Layers()), splitOver(shares...))
		assert.ErrorContains(t, err, want)
	}
}

// The option of a known model says what the server's settings do, until a type of the weights replaces their sizes.
func TestServed(t *testing.T) {
	m, err := zoo.ByName("llama-3-8b")
	require.NoError(t, err)
	cache, err := m.Cache(4, 1000)
	require.NoError(t, err)
	served := func(by llamacpp.Server) estimate.Option {
		o, err := m.Served(cache, by)
		require.NoError(t, err)
		return o
	}
	unsaid, unified, apart := config(served(llamacpp.Server{})), config(served(llamacpp.Server{Slots: "unified"})), config(served(llamacpp.Server{Slots: "apart"}))
	assert.Equal(t, []int{4, 1024, 1, 4096, 4, 1024}, []int{unsaid.Cache.Batch, unsaid.Cache.ContextLength, unified.Cache.Batch, unified.Cache.ContextLength, apart.Cache.Batch, apart.Cache.ContextLength})
	assert.Equal(t, unsaid.Compute, unified.Compute)
	assert.Less(t, apart.Compute, unsaid.Compute)
	assert.Nil(t, unsaid.GpuLayers)
	some := config(served(llamacpp.Server{GPULayers: -3, Split: []float64{1, 2}, Projector: 5}))
	assert.Zero(t, *some.GpuLayers)
	assert.Equal(t, []float64{1, 2}, some.Shares)
	assert.EqualValues(t, 5, some.Projector)
	assert.Len(t, some.Sizes.Blocks, 32)
	assert.Nil(t, config(served(llamacpp.Server{}), estimate.Precision(alloc.Float32)).Sizes)
	_, err = m.Served(cache, llamacpp.Server{Slots: "both"})
	assert.ErrorContains(t, err, `Slots is "both": want unified or apart`)
	_, err = m.Served(estimate.KVConfig{}, llamacpp.Server{})
	assert.ErrorContains(t, err, "compute buffer")
	resnet, err := zoo.ByName("resnet18")
	require.NoError(t, err)
	_, err = resnet.Served(cache, llamacpp.Server{})
	assert.ErrorContains(t, err, "it writes no text")
	gpt2, err := zoo.ByName("gpt2")
	require.NoError(t, err)
	_, err = gpt2.Cache(1, 1025)
	assert.ErrorContains(t, err, "gpt2 has 1024 positions, too few for 1025 tokens")
}

func gpuLayers(n int) estimate.Option { return option(func(c *setting.Config) { c.GpuLayers = &n }) }

func splitOver(shares ...float64) estimate.Option {
	return option(func(c *setting.Config) { c.Shares = shares })
}

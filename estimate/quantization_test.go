package estimate_test

import (
	"fmt"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// Bits a weight of Llama 3.1 8B as llama.cpp publishes them (tools/quantize/README.md), whose files
// hold 64 frequencies more.
func TestQuantizedSizes(t *testing.T) {
	m, err := zoo.ByName("llama-3-8b")
	require.NoError(t, err)
	published := map[string]float64{
		"Q2_K": 3.1593, "Q3_K_S": 3.6429, "Q3_K_L": 4.2979, "Q4_K_S": 4.6672, "Q4_K_M": 4.8944,
		"Q5_K_S": 5.5704, "Q5_K_M": 5.7036, "Q6_K": 6.5633, "Q8_0": 8.5008, "F16": 16.0005,
	}
	found := 0
	last := alloc.Bytes(0)
	for _, q := range llamacpp.Quantizations() {
		stored, err := q.Stored(m.Layers)
		require.NoError(t, err)
		assert.Equal(t, m.Params, config(stored).Stored.Count, q)
		assert.GreaterOrEqual(t, config(stored).Stored.Bytes, last, "smallest first")
		last = config(stored).Stored.Bytes
		if want, ok := published[string(q)]; ok {
			found++
			assert.InDelta(t, want, 8*float64(config(stored).Stored.Bytes)/float64(config(stored).Stored.Count), 0.0001, q)
		}
	}
	assert.Len(t, published, found)
}

// Sizes of tensors that llama.cpp prints when it loads files that others made ("file size"), in MiB.
func TestQuantizedFiles(t *testing.T) {
	qwen32b, err := zoo.ByName("qwen2.5-32b")
	require.NoError(t, err)
	for name, of := range map[string]struct {
		layers  []tape.Layer
		printed float64
	}{
		"TinyLlama 1.1B": {tinyLlama.Layers(), 636.18},
		"Mistral 7B":     {mistral7b.Layers(), 4.07 * 1024},
		"Qwen2.5 32B":    {layer.From(qwen32b.Layers), 18.48 * 1024},
	} {
		for _, q := range llamacpp.Quantizations() {
			if q == "Q4_K_M" {
				stored, err := q.Stored(layer.Public(of.layers))
				require.NoError(t, err)
				assert.InEpsilon(t, of.printed, float64(config(stored).Stored.Bytes)/float64(alloc.MiB), 0.001, name)
			}
		}
	}
}

func TestBestQuantization(t *testing.T) {
	cache := estimate.KVConfig(mistral7b.Cache(1, 8192, 0))
	buffer, err := mistral7b.ComputeBuffer(family.LlamaCpp{ContextLength: 8192, FlashAttention: true})
	require.NoError(t, err)
	opts := []estimate.Option{estimate.Tokens(1, 512), cache, computedIn(buffer), estimate.Machine{GPU: "ada", Loading: "lazy"}}
	names := []string{}
	for _, budget := range []alloc.Bytes{2 * alloc.GiB, 6 * alloc.GiB, 8 * alloc.GiB, 24 * alloc.GiB} {
		q, r, ok, err := llamacpp.BestQuantization(layer.Public(mistral7b.Layers()), budget, opts...)
		require.NoError(t, err)
		names = append(names, string(q))
		require.Equal(t, ok, q != "")
		if ok {
			assert.LessOrEqual(t, r.Needs(), budget)
			assert.Equal(t, buffer, r.Inference.Transient)
			assert.Equal(t, r.Inference.Weights+r.Inference.Buffers+r.Inference.Cache+buffer, r.Inference.Peak.Bytes)
		}
	}
	assert.Equal(t, []string{"", "Q4_K_M", "Q6_K", "F16"}, names)
	_, _, _, err = llamacpp.BestQuantization(layer.Public(mistral7b.Layers()), alloc.GiB, append(opts, estimate.Train("sgd"))...)
	assert.ErrorContains(t, err, "leave Train out")
}

// What llama.cpp printed as "CUDA0 compute buffer size" (docs/estimate.md).
func TestComputeBuffer(t *testing.T) {
	for _, p := range printedBuffers {
		n, err := p.model.ComputeBuffer(p.by)
		require.NoError(t, err)
		assert.InEpsilon(t, p.mib, float64(n)/float64(alloc.MiB), 0.10, p.name)
	}
	for _, bad := range []struct {
		c family.Transformer
		l family.LlamaCpp
	}{{bertLarge, family.LlamaCpp{ContextLength: 1}}, {mistral7b, family.LlamaCpp{}}, {mistral7b, family.LlamaCpp{ContextLength: 1, Batch: -1}},
		{mistral7b, family.LlamaCpp{ContextLength: 1 << 30, Batch: 1 << 30}}} {
		_, err := bad.c.ComputeBuffer(bad.l)
		assert.ErrorContains(t, err, "compute buffer")
	}
}

// printedBuffer is a compute buffer that llama.cpp printed.
type printedBuffer struct {
	name, source string
	model        family.Transformer
	by           family.LlamaCpp
	mib          float64
}

var (
	llama8b  = family.Transformer{Vocab: 128256, Hidden: 4096, FFN: 14336, Blocks: 32, Heads: 32, KVHeads: 8}
	llama70b = family.Transformer{Vocab: 128256, Hidden: 8192, FFN: 28672, Blocks: 80, Heads: 64, KVHeads: 8}
	qwen32b  = family.Transformer{Vocab: 151936, Hidden: 5120, FFN: 25600, Blocks: 64, Heads: 64, KVHeads: 8, HeadSize: 128}
	qwen30b  = family.Transformer{Vocab: 151936, Hidden: 2048, Blocks: 48, Heads: 32, KVHeads: 4, HeadSize: 128, Mixture: family.Mixture{Experts: 128, TopK: 8, ExpertFFN: 768}}
	qwen235b = family.Transformer{Vocab: 151936, Hidden: 4096, Blocks: 94, Heads: 64, KVHeads: 4, HeadSize: 128, Mixture: family.Mixture{Experts: 128, TopK: 8, ExpertFFN: 1536}}
	qwen7b   = family.Transformer{Vocab: 152064, Hidden: 3584, FFN: 18944, Blocks: 28, Heads: 28, KVHeads: 4}
	pythia   = family.Transformer{Family: family.GPTNeoX, Bias: true, Parallel: true, Vocab: 50304, Hidden: 2560, FFN: 10240, Blocks: 32, Heads: 32}
)

// commandR is the model of 35 G parameters.
var commandR = family.Transformer{Family: family.Cohere, Vocab: 256000, Hidden: 8192, FFN: 22528, Blocks: 40, Heads: 64, Tied: true}

// Models whose buffers were printed.
var (
	trilm    = family.Transformer{Vocab: 50688, Hidden: 3072, FFN: 9216, Blocks: 30, Heads: 24}
	phi3Mini = family.Transformer{Family: family.Phi3, Vocab: 32064, Hidden: 3072, FFN: 8192, Blocks: 32, Heads: 32}
	qwen25   = family.Transformer{Vocab: 152064, Hidden: 5120, FFN: 27648, Blocks: 64, Heads: 40, KVHeads: 8, Attention: family.Attention{QKVBias: true}}
	qwen35   = family.Transformer{Family: family.Qwen3Next, Vocab: 248320, Hidden: 4096, FFN: 12288, Blocks: 32, Heads: 16, KVHeads: 4, HeadSize: 256}
)

var printedBuffers = []printedBuffer{
	{"Llama 3.1 8B", "ollama on a T4, 2024-08", llama8b, family.LlamaCpp{ContextLength: 8192, Build: 4823}, 560},
	{"Llama 3.1 70B", "llama-server on an RTX 4090, 2024-09", llama70b, family.LlamaCpp{ContextLength: 8192, Build: 4823}, 1104},
	{"OpenLLaMA 7B", "llama.cpp's CI on a V100, 2024-03", llama7b, family.LlamaCpp{ContextLength: 2048, Build: 4823}, 164},
	{"Llama 2 13B", "llama.cpp on an A100, 2024-02", llama13b, family.LlamaCpp{ContextLength: 512, Build: 4823}, 81},
	{"Pythia 2.8B", "llama.cpp's CI on a V100, build 4823", pythia, family.LlamaCpp{ContextLength: 2048, Build: 4823}, 162},
	{"Qwen3 32B", "ikawrakow/ik_llama.cpp discussion 397, build 3673", qwen32b, family.LlamaCpp{ContextLength: 8192, Batch: 1024, FlashAttention: true, Build: 4823}, 633.5},
	{"Qwen3 30B-A3B", "ikawrakow/ik_llama.cpp discussions, 2025-05", qwen30b, family.LlamaCpp{ContextLength: 32768, FlashAttention: true, Build: 4823}, 304.75},
	{"Qwen3 235B-A22B", "ikawrakow/ik_llama.cpp discussions, 2025-07, the second of two GPUs", qwen235b, family.LlamaCpp{ContextLength: 32768, Batch: 2048, FlashAttention: true, Build: 4823}, 1251},
	{"Qwen2.5 7B", "a benchmark's log, 2025", qwen7b, family.LlamaCpp{ContextLength: 2048, FlashAttention: true, Build: 4823}, 304},
	{"Command R 35B", "ggml-org/llama.cpp pull request 6122, the first of two GPUs", commandR, family.LlamaCpp{ContextLength: 4096, GPUs: 2, Build: 4823}, 672.01},
	{"TriLM 3.9B", "mozilla-ai/llamafile pull request 552, on an RTX 4080", trilm, family.LlamaCpp{ContextLength: 512, Build: 4823}, 105},
	{"Llama 3.1 8B", "ikawrakow/ik_llama.cpp discussions, 2024, on an RTX 3090", llama8b, family.LlamaCpp{ContextLength: 1024, Build: 4823}, 266.5},
	{"Phi-3 mini 128k", "ggml-org/llama.cpp issue 6849, on the CPU", phi3Mini, family.LlamaCpp{ContextLength: 131328, Build: 4823, Host: true}, 8500.51},
	{"Qwen3.5 9B", "a log of llama-server on an RTX 4070, 2026", qwen35, family.LlamaCpp{ContextLength: 32768, FlashAttention: true, Build: 8179}, 501},
	{"Qwen3.5 9B", "a log of llama-server on an RTX 4070, 2026", qwen35, family.LlamaCpp{ContextLength: 262144, FlashAttention: true, Build: 8179}, 808.02},
	{"DeepSeek V2 Lite, a file from before April 2025", "a log of llama.cpp on OpenCL, 2026", deepseekV2Lite, family.LlamaCpp{ContextLength: 4096, FlashAttention: true}, 208},
	{"DeepSeek R1, a file from before April 2025", "a log of llama.cpp on 8 AMD GPUs, 2025", deepseekR1, family.LlamaCpp{ContextLength: 8192, GPUs: 8, Build: 4823}, 2322.01},
	{"DeepSeek R1, a file from before April 2025", "a log of llama.cpp on the CPU, 2025", deepseekR1, family.LlamaCpp{ContextLength: 4096, Build: 4823, Host: true}, 1186.01},
	{"DeepSeek R1, a file from before April 2025", "a log of llama.cpp on the CPU, 2025", deepseekR1, family.LlamaCpp{ContextLength: 2048, Build: 4823, Host: true}, 670.01},
	{"DeepSeek R1", "two blocks of its sizes, llama.cpp of 2026 on the CPU", r1Latent, family.LlamaCpp{ContextLength: 8192, Build: 8179, Host: true}, 2472.01},
	{"DeepSeek R1", "two blocks of its sizes, llama.cpp of 2026 on the CPU", r1Latent, family.LlamaCpp{ContextLength: 16384, FlashAttention: true, Build: 8179, Host: true}, 424.01},
}

// servedBuffer is the weights of a model, or its keys and values, as llama.cpp printed them.
type servedBuffer struct {
	name, source string
	model        family.Transformer
	quantization string
	context      int
	weights, kv  float64 // in MiB; 0 where it is not printed
}

var qwen05b = family.Transformer{Vocab: 151936, Hidden: 896, FFN: 4864, Blocks: 24, Heads: 14, KVHeads: 2, Attention: family.Attention{QKVBias: true}, Tied: true}

// deepseekV2Lite and deepseekR1 are as files have them that were made before April 2025; r1Latent as later ones do.
var (
	deepseekV2Lite = family.Transformer{Family: family.DeepSeek, Vocab: 102400, Hidden: 2048, FFN: 10944, Blocks: 27, Heads: 16, Mixture: family.Mixture{DenseBlocks: 1, Experts: 64, TopK: 6, ExpertFFN: 1408, SharedFFN: 2816}, Attention: family.Attention{Latent: &layer.LatentAttention{KVRank: 512, NopeSize: 128, RopeSize: 64, ValueSize: 128, Whole: true}}}
	deepseekR1     = family.Transformer{Family: family.DeepSeek, Vocab: 129280, Hidden: 7168, FFN: 18432, Blocks: 61, Heads: 128, Mixture: family.Mixture{DenseBlocks: 3, Experts: 256, TopK: 8, ExpertFFN: 2048, SharedFFN: 2048}, Attention: family.Attention{Latent: &layer.LatentAttention{QueryRank: 1536, KVRank: 512, NopeSize: 128, RopeSize: 64, ValueSize: 128, Whole: true}}}
	r1Latent       = func() family.Transformer {
		c, latent := deepseekR1, *deepseekR1.Latent
		latent.Whole, c.Latent = false, &latent
		return c
	}()
)

var servedBuffers = []servedBuffer{
	{"Pythia 2.8B", "llama.cpp's CI on a V100, build 4823", pythia, "Q8_0", 2048, 2684.57, 640},
	{"Pythia 2.8B", "llama.cpp's CI on a V100, build 4563", pythia, "Q4_0", 2048, 1454.83, 640},
	{"Pythia 2.8B", "llama.cpp's CI on a V100, build 4563", pythia, "Q3_K_M", 2048, 1354.83, 640},
	{"Llama 3.1 8B", "ollama on a T4, 2024-08", llama8b, "Q4_0", 8192, 4156, 1024},
	{"Qwen2.5 0.5B", "llama.cpp on an RTX 2080 Ti, 2026", qwen05b, "Q4_K_M", 512, 373.73, 6},
	{"Qwen3 32B", "ikawrakow/ik_llama.cpp discussion 397, unsloth's UD-Q5_K_XL taken for it", qwen32b, "Q5_K_M", 8192, 21608.65, 2048},
	{"Qwen3 30B-A3B", "a log of llama-server, 2025", qwen30b, "", 65536, 0, 6144},
	{"Pythia 2.8B", "llama.cpp's CI on a V100", pythia, "F16", 2048, 5049.71, 640},
	{"TriLM 3.9B", "mozilla-ai/llamafile pull request 552, on an RTX 4080", trilm, "F16", 512, 7317.71, 180},
	{"DeepSeek R1 Distill Qwen 32B", "ggml-org/llama.cpp issue 11861", qwen25, "Q4_K_M", 16384, 18508.35, 4096},
	{"DeepSeek V2 Lite, a file from before April 2025", "a log of llama.cpp on OpenCL, 2026", deepseekV2Lite, "", 4096, 0, 1080},
	{"DeepSeek R1, a file from before April 2025", "a log of llama.cpp on 8 AMD GPUs, 2025", deepseekR1, "", 8192, 0, 39040},
	{"DeepSeek R1", "a log of ik_llama.cpp, 2025", r1Latent, "", 32768, 0, 2196},
}

// row is one of the page's.
func (p servedBuffer) row(t *testing.T) string {
	t.Helper()
	mib := func(n alloc.Bytes) string { return fmt.Sprintf("%.2f", float64(n)/float64(alloc.MiB)) }
	cache, err := estimate.KVCache(estimate.KVConfig(p.model.Cache(1, p.context, alloc.Float16)))
	require.NoError(t, err)
	printed, weights := "", ""
	if p.quantization != "" {
		n, err := modelBuffer(p.model, llamacpp.Quantization(p.quantization))
		require.NoError(t, err)
		printed, weights = fmt.Sprintf("%.2f", p.weights), mib(n)
	}
	return fmt.Sprintf("| %s | %s | %d | %s | %s | %.2f | %s | %s |\n", p.name, p.quantization, p.context, printed, weights, p.kv, mib(cache), p.source)
}

// What llama.cpp printed as "CUDA0 model buffer size" and "CUDA0 KV buffer size".
func TestModelAndCacheBuffers(t *testing.T) {
	for _, p := range servedBuffers {
		t.Run(p.name+" "+p.quantization, func(t *testing.T) {
			cache, err := estimate.KVCache(estimate.KVConfig(p.model.Cache(1, p.context, alloc.Float16)))
			require.NoError(t, err)
			assert.Equal(t, alloc.Bytes(p.kv)*alloc.MiB, cache)
			if p.quantization == "" {
				return
			}
			weights, err := modelBuffer(p.model, llamacpp.Quantization(p.quantization))
			require.NoError(t, err)
			assert.InEpsilon(t, p.weights, float64(weights)/float64(alloc.MiB), 0.001)
		})
	}
	old, quantized := deepseekV2Lite.Cache(1, 4096, alloc.Float16), deepseekV2Lite.Cache(1, 4096, alloc.Float16)
	quantized.Keys, quantized.Values = "q8_0", "float16"
	for c, want := range map[*setting.KVConfig][2]alloc.Bytes{&old: {648 * alloc.MiB, 432 * alloc.MiB}, &quantized: {648 * alloc.MiB / 2 / 32 * 34, 432 * alloc.MiB}} {
		k, err := setting.KVCache(*c)
		require.NoError(t, err)
		assert.Equal(t, want, [2]alloc.Bytes{k.Keys, k.Values}, "keys of 192 elements and values of 128, which llama.cpp prints as 1080 MiB together")
	}
	_, err := modelBuffer(family.Transformer{}, llamacpp.Quantization("Q8_0"))
	assert.Error(t, err)
}

// modelBuffer is what llama.cpp prints as the model buffer of a GPU that has all layers: the
// weights in the mixture, but for the table of the token embedding, which stays in the memory
// of the CPU unless it is the head's too (src/llama-model.cpp, load_tensors).
func modelBuffer(c family.Transformer, q llamacpp.Quantization) (alloc.Bytes, error) {
	stored, err := q.StoredBefore2026(layer.Public(c.Layers())) // as all these files were made
	if err != nil {
		return 0, err
	}
	sizes := *config(stored).Sizes
	gpu, _ := sizes.OnGPU(sizes.Layers())
	return gpu, nil
}

// config is what options say.
func config(opts ...estimate.Option) setting.Config {
	var c setting.Config
	for _, o := range opts {
		o.Apply(&c)
	}
	return c
}

func option(f func(*setting.Config)) estimate.Option { return setting.Func(f) }

// computedIn is llama.cpp with a compute buffer of this size.
func computedIn(buffer alloc.Bytes) estimate.Option {
	return option(func(c *setting.Config) { c.Compute = buffer })
}

// together is one option that does what several do.
func together(opts ...estimate.Option) estimate.Option {
	return setting.Func(func(c *setting.Config) {
		for _, o := range opts {
			o.Apply(c)
		}
	})
}

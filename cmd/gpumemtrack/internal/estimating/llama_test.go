package estimating

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

// The server's own names of flags give the same answer.
func TestFlagsOfLlamaServer(t *testing.T) {
	ours := estimateJSON(t, "qwen3-0.6b --engine llama.cpp --seq 4096 --slots 4 --gpu-layers 9 --ubatch 256 --flash-attention=true")
	theirs := estimateJSON(t, "qwen3-0.6b --engine llama.cpp --ctx-size 4096 --parallel 4 --n-gpu-layers 9 --ubatch-size 256 --flash-attn=true")
	assert.Equal(t, ours.Report, theirs.Report)
	assert.Equal(t, ours.Assumed, theirs.Assumed)
}

// llama.cpp's compute buffer stands in place of PyTorch's activations.
func TestEstimateLlamaCpp(t *testing.T) {
	const base = "llama-3-8b --serve --batch 4 --seq 2048 --gpu turing --engine llama.cpp "
	const old = base + "--engine-version b5000 "
	plain := estimateJSON(t, old)
	assert.InDelta(t, 560, float64(plain.Report.Inference.Transient)/float64(alloc.MiB), 0.005, "as ollama prints it on a T4")
	assert.Equal(t, 1024*alloc.MiB, plain.Report.Inference.Cache)
	flash := estimateJSON(t, base+"--flash-attention --ubatch 256")
	assert.Less(t, flash.Report.Inference.Transient, 150*alloc.MiB)

	best := estimateJSON(t, base+"--flash-attention --fits 8GiB --best-quantization")
	assert.Equal(t, "Q6_K", best.Quantization)
	assert.True(t, *best.Fits)

	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
		"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}`), 0o600))
	of := estimateJSON(t, config+strings.TrimPrefix(base, "llama-3-8b")+"--flash-attention --fits 8GiB --best-quantization")
	assert.Equal(t, best.Quantization, of.Quantization)
	assert.Equal(t, best.Peak, of.Peak)

	var stdout, stderr bytes.Buffer
	assert.Equal(t, cli.ExitUnfit, run(strings.Fields("estimate "+base+"--fits 2GiB --best-quantization"), nil, &stdout, &stderr))
	assert.Contains(t, stdout.String(), "Quantized to Q2_K.")
}

// gguf is a file of one float16 tensor in GGUF, of an architecture.
func gguf(architecture, tensor string, elements uint64) []byte {
	b := []byte("GGUF")
	put := func(v any) { b, _ = binary.Append(b, binary.LittleEndian, v) }
	text := func(s string) { put(uint64(len(s))); b = append(b, s...) }
	put([]uint32{3, 1, 0, 1, 0}) // version, tensors, keys
	text("general.architecture")
	put(uint32(8))
	text(architecture)
	text(tensor)
	put(uint32(1))
	put(elements)
	put(uint32(1))
	put(uint64(0))
	return append(b, make([]byte, uint64(-len(b)&31)+2*elements)...)
}

// Some layers of a model stay on the CPU, as llama.cpp counts them.
func TestEstimateGPULayers(t *testing.T) {
	const base = "llama-3-8b --seq 2048 --gpu ada --cuda-loading lazy --flash-attention "
	all := estimateJSON(t, base+"--gpu-layers 33")
	assert.Equal(t, "serve", all.Mode)
	assert.Equal(t, 33, all.GPULayers)
	assert.EqualValues(t, 128256*4096*2, all.Host, "the embedding")
	assert.Equal(t, all.Report.Inference, estimateJSON(t, base+"--serve --engine llama.cpp").Report.Inference)
	assert.Equal(t, all.Report.Inference, estimateJSON(t, base+"--gpu-layers 99").Report.Inference)

	most := estimateJSON(t, base+"--fits 8GiB --max-gpu-layers")
	assert.True(t, *most.Fits)
	assert.Greater(t, most.GPULayers, 10)
	assert.Equal(t, most.Report.Inference, estimateJSON(t, fmt.Sprintf("%s--gpu-layers %d", base, most.GPULayers)).Report.Inference)
	assert.Greater(t, estimateJSON(t, fmt.Sprintf("%s--gpu-layers %d", base, most.GPULayers+1)).Needs, 8*alloc.GiB)
	assert.EqualValues(t, (most.GPULayers-1)*2048*4096, most.Report.Inference.Cache, "of the blocks on the GPU")

	halves := estimateJSON(t, base+"--tensor-split 1,1")
	assert.Equal(t, all.Host, halves.Host)
	assert.Less(t, halves.Report.Inference.Weights, all.Report.Inference.Weights*6/10)

	projector := filepath.Join(t.TempDir(), "mmproj-model-f16.gguf")
	require.NoError(t, os.WriteFile(projector, gguf("clip", "v.patch_embd.weight", 1<<20), 0o600))
	seeing := estimateJSON(t, base+"--mmproj "+projector)
	assert.Equal(t, 2*alloc.MiB, seeing.Report.Inference.Weights-all.Report.Inference.Weights)

	other := filepath.Join(t.TempDir(), "other.gguf")
	require.NoError(t, os.WriteFile(other, gguf("llama", "w", 16), 0o600))
	var stdout, stderr bytes.Buffer
	require.NotZero(t, run(strings.Fields("estimate "+base+"--mmproj "+other), nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "other is no projector: give a GGUF file whose general.architecture is clip")
}

// The states of recurrent layers are float32 in llama.cpp, whatever --kv says.
func TestEstimateStatesOfLlamaCpp(t *testing.T) {
	cache := func(flags string) alloc.Bytes {
		return estimateJSON(t, "qwen3-next-80b-a3b-instruct --serve --engine llama.cpp --flash-attention --seq 4096"+flags).Report.Inference.Cache
	}
	const keys, windows, recurrent = 2 * 12 * 2 * 256 * 4096, 36 * 8192 * 4, 36 * 32 * 128 * 128
	apart := estimateJSON(t, "qwen3-next-80b-a3b-instruct --serve --seq 4096").Report.Inference
	assert.EqualValues(t, 2*windows+4*recurrent, apart.Cache-apart.Keys-apart.Values, "in transformers only the recurrent states are float32")
	assert.EqualValues(t, 2*keys, apart.Keys+apart.Values)
	llama := estimateJSON(t, "llama-3-8b --serve").Report.Inference
	assert.Equal(t, llama.Keys+llama.Values, llama.Cache)
	const kept = windows/4*3 + recurrent // llama.cpp keeps what the next token needs of the four
	assert.EqualValues(t, 2*keys+4*kept, cache(""))
	assert.EqualValues(t, keys/32*34+4*kept, cache(" --kv q8_0"))
}

// Keys and values have a type each: llama.cpp's --cache-type-k and --cache-type-v. A number of each is in the JSON.
func TestEstimateTypesOfKeysAndValues(t *testing.T) {
	const half = 32 * 8 * 128 * 4096 * 2
	const eighth = half / 2 / 32 * 34
	for kv, want := range map[string][2]alloc.Bytes{
		"": {half, half}, "q8_0": {eighth, eighth}, "k=q8_0": {eighth, half}, "k=q8_0,v=f16": {eighth, half}, "v=iq4_nl": {half, half / 2 / 32 * 18},
		"v=f32,k=bf16": {half, 2 * half}, "int4": {half / 4, half / 4},
	} {
		args := "llama-3-8b --serve --engine llama.cpp --flash-attention --seq 4096"
		if kv != "" {
			args += " --kv " + kv
		}
		m := estimateJSON(t, args).Report.Inference
		assert.Equal(t, want, [2]alloc.Bytes{m.Keys, m.Values}, args)
		assert.Equal(t, m.Keys+m.Values, m.Cache, args)
	}
	for _, kv := range []string{"q9", "k=q9", "q8_0,f16", "x=f16", "k=q8_0,f16", ","} {
		var out, stderr bytes.Buffer
		assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate llama-3-8b --serve --kv "+kv), nil, &out, &stderr), kv)
		assert.Contains(t, stderr.String(), "--kv "+kv+": want", kv)
	}
	printed := func(kv string) string {
		var out, stderr bytes.Buffer
		require.Zero(t, run(strings.Fields("estimate llama-3-8b --engine llama.cpp --flash-attention=false --seq 4096 --kv "+kv), nil, &out, &stderr), stderr.String())
		return out.String()
	}
	assert.Regexp(t, `keys and values +│ +272.0 MiB`, printed("q8_0"))
	assert.Regexp(t, `keys +│ +136.0 MiB`, printed("k=q8_0"))
	assert.Regexp(t, `values +│ +256.0 MiB`, printed("k=q8_0"))
	warns := func(kv string) bool {
		return strings.Contains(printed(kv), "quantizes values only with --flash-attention")
	}
	assert.True(t, warns("q8_0"))
	assert.True(t, warns("v=q4_0"))
	assert.False(t, warns("k=q8_0"), "keys can be quantized without it")
}

// Sequences of llama.cpp share a cache, or have one each.
func TestEstimateOfAUnifiedCache(t *testing.T) {
	const base = "gemma-3-4b-it --engine llama.cpp --flash-attention=false --batch 4 --seq 8192"
	unified, apart := estimateJSON(t, base), estimateJSON(t, base+" --kv-unified=false")
	assert.Less(t, unified.Report.Inference.Cache, apart.Report.Inference.Cache, "one window has room for a batch instead of four")
	assert.Less(t, apart.Report.Inference.Transient, unified.Report.Inference.Transient, "scores of one sequence")
	assert.Equal(t, apart.Report.Inference, estimateJSON(t, base+" --slots 4").Report.Inference, "as the server does with --parallel")
	assert.Equal(t, 8192, unified.Context)
	latent := estimateJSON(t, "deepseek-v2-lite --engine llama.cpp --serve --seq 4096")
	assert.Equal(t, alloc.Bytes(27*576*2*4096), latent.Report.Inference.Cache)
}

// Flash attention that is llama.cpp's choice is open to the upper bound alone, unless CUDA surely has it.
func TestEstimateFlashAttentionOfLlamaCpp(t *testing.T) {
	const base = "llama-3-8b --engine llama.cpp --slots 1 --seq 131072"
	auto, on, off := estimateJSON(t, base), estimateJSON(t, base+" --flash-attention"), estimateJSON(t, base+" --flash-attention=false")
	assert.Equal(t, on.Peak, auto.Peak)
	assert.Less(t, on.Report.Inference.Transient, 267*alloc.MiB, "llama.cpp prints 266.5 MiB on the CPU")
	assert.Greater(t, auto.Needs, off.Peak)
	assert.Less(t, on.Needs, off.Peak)
	cuda := estimateJSON(t, base+" --gpu h100")
	assert.Less(t, cuda.Needs-cuda.Peak, 2*alloc.GiB, "the context and little more")
	assert.Contains(t, auto.Assumed, "--flash-attention=auto")
}

// What drafts takes keys and values, a compute buffer, and states of recurrent layers to return to.
func TestEstimateDraftsOfLlamaCpp(t *testing.T) {
	const base = "qwen3.5-27b --engine llama.cpp --slots 1 --seq 4096"
	plain := estimateJSON(t, base)
	var stdout, stderr bytes.Buffer
	assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate "+base+" --draft-max 3"), nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "nothing drafts: give --draft-mtp or --model-draft")
	stderr.Reset()
	assert.NotZero(t, run(strings.Fields("estimate "+base+" --draft-mtp"), nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "no blocks that predict further tokens")

	draft := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(draft, []byte(`{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 248320, "hidden_size": 1024, "intermediate_size": 4096,
		"num_hidden_layers": 4, "num_attention_heads": 16, "tie_word_embeddings": true}`), 0o600))
	beside := estimateJSON(t, base+" --draft-max 3 --model-draft "+draft)
	states := plain.Report.Inference.Cache - plain.Report.Inference.Keys - plain.Report.Inference.Values
	assert.Positive(t, states)
	assert.Equal(t, plain.Report.Inference.Cache+3*states, beside.Report.Inference.Cache)
	assert.Greater(t, beside.Report.Inference.Weights, plain.Report.Inference.Weights)
}

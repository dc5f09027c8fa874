package estimating

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/engines"
)

// Servers hold no scores where transformers does, and the answer names the one that says how many requests fit.
// The help says on which GPUs each default holds.
func TestEngineDefaultsByGPU(t *testing.T) {
	all := engineDefaults()
	for _, want := range []string{
		"  --max-batched-tokens 4096: without --gpu and --fits, without --prefill-chunk\n  --max-batched-tokens 2048: GPUs of less than 20 GiB, without",
		"  --max-batched-tokens 2048: without --prefill-chunk\n", "  --max-batched-tokens 4096: GPUs of 20 GiB or more, without",
	} {
		assert.Contains(t, all, want)
	}
}

func TestServersHoldNoScores(t *testing.T) {
	const serve = "gpt-oss-20b --serve --gpu h100 --seq 16384 --max-batched-tokens 2048"
	e, served := estimateJSON(t, serve), estimateJSON(t, serve+" --engine vllm")
	assert.Less(t, 8*served.Report.Inference.Transient, e.Report.Inference.Transient)
	assert.Contains(t, strings.Join(served.Report.Notes, "\n"), "--max-model-len N with --gpu says how many requests of N tokens fit")
	assert.Equal(t, e.Peak, estimateJSON(t, serve+" --attention sdpa").Peak)
	var stdout, stderr bytes.Buffer
	require.Equal(t, cli.ExitUnfit, run(strings.Fields("estimate "+strings.Replace(serve, "--gpu h100", "--fits 20GiB", 1)), nil, &stdout, &stderr), stderr.String())
	assert.Contains(t, stdout.String(), "with flash attention, which holds no scores\n")
}

// Flags that change nothing about the model are named.
func TestIdleFlags(t *testing.T) {
	for args, want := range map[string]string{
		"gpt2 --train --replicas 2 --ep 2 --zero 1": "--ep has no effect",
		"gpt2 --vae-tiling":                         "--vae-slicing and --vae-tiling have no effect",
		"gpt2 --engine deepspeed --replicas 2":      "each replica holds all states",
		"gpt2 --engine sglang --seq 64":             "SGLang takes its share of a GPU",
	} {
		assert.Contains(t, strings.Join(estimateJSON(t, args).Report.Notes, "\n"), want, args)
	}
	assert.NotContains(t, strings.Join(estimateJSON(t, "gpt2 --engine deepspeed --replicas 2 --zero 2").Report.Notes, "\n"), "each replica holds")
}

// The defaults of every engine are flags of the command, and give the same answer when they are given.
func TestEveryEngine(t *testing.T) {
	for _, name := range engines.Names() {
		for _, mode := range []string{"--serve", "--train"} {
			e, err := engines.Named(name)
			require.NoError(t, err)
			args := "qwen3-0.6b --seq 512 --engine " + name + " " + mode
			if mode == "--serve" && !e.Serves || mode == "--train" && !e.Trains {
				var out, stderr bytes.Buffer
				assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate "+args), nil, &out, &stderr), args)
				assert.Contains(t, stderr.String(), "leave "+mode+" out", args)
				continue
			}
			assumed := estimateJSON(t, args)
			said := estimateJSON(t, args+" "+strings.Join(assumed.Assumed, " "))
			assert.Empty(t, said.Assumed, args)
			assert.Equal(t, assumed.Report.Memory(), said.Report.Memory(), args)
		}
	}
}

func TestEngineAndItsFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--engine tgi":                                     `no engine is named "tgi": want one of transformers, trl, llama.cpp`,
		"--engine-version 0.9":                             "--engine-version needs --engine",
		"--engine vllm --engine-version x":                 "want a release such as 0.26.1 or b6325",
		"--engine vllm --slots 4":                          "--slots is about llama.cpp",
		"--prefill-chunk 4 --max-batched-tokens 8 --serve": "choose --prefill-chunk",
	} {
		var out, stderr bytes.Buffer
		assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate qwen3-0.6b --seq 64 "+args), nil, &out, &stderr), args)
		assert.Contains(t, stderr.String(), want, args)
	}
	var out, stderr bytes.Buffer
	require.Zero(t, run(strings.Fields("estimate qwen3-0.6b --seq 64 --engine vllm --gpu h100"), nil, &out, &stderr), stderr.String())
	assert.Contains(t, out.String(), "Assumed, as not given: --batch 1 --dtype bfloat16; --attention flash --max-batched-tokens 8192 by default of vLLM 0.33.0\n")
}

// Tokens of a step are those of all texts, so that activations do not grow with the batch.
func TestTokensOfAStep(t *testing.T) {
	of := func(flags string) (alloc.Shape, alloc.Bytes) {
		m := estimateJSON(t, "qwen3-0.6b --serve --max-batched-tokens 2048 "+flags)
		return m.Report.Inputs[0], m.Report.Inference.Cache
	}
	one, kept := of("--seq 4096")
	assert.Equal(t, alloc.Shape{1, 2048}, one)
	for flags, want := range map[string]alloc.Shape{
		"--seq 4096 --batch 32": {1, 2048}, "--seq 100 --batch 8": {8, 100}, "--seq 100 --batch 64": {21, 98}, "--seq 1500 --batch 4": {2, 1024},
	} {
		shape, _ := of(flags)
		assert.Equal(t, want, shape, flags)
	}
	_, all := of("--seq 4096 --batch 32")
	assert.Equal(t, 32*kept, all)
	pool := estimateJSON(t, "gemma-3-1b-it --engine vllm --seq 8192 --batch 4").Report.Inference
	assert.Equal(t, pool.Cache, pool.CachePeak, "nothing is appended in a pool")
}

// The release of an engine that is a library is that of the library too.
func TestReleaseOfALibrary(t *testing.T) {
	const base = "llama-3-8b --serve --seq 4096 --dtype bfloat16 --engine transformers"
	assert.Equal(t, estimateJSON(t, base+" --transformers 4.38").Peak, estimateJSON(t, base+" --engine-version 4.38").Peak)
	assert.Less(t, estimateJSON(t, base).Peak, estimateJSON(t, base+" --engine-version 4.38").Peak, "logits of all tokens")
	assert.Contains(t, strings.Join(estimateJSON(t, "gpt2 --engine transformers --engine-version 4.40").Assumed, " "), "--dtype float32")
	trl := estimateJSON(t, "gpt2 --engine trl")
	assert.Equal(t, alloc.Shape{8, 1024}, trl.Report.Inputs[0])
}

package estimating

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/long"
)

// unfit runs a command whose model does not fit, and returns what it prints with --json.
func unfit(t *testing.T, args string) estimated {
	t.Helper()
	var stdout, stderr bytes.Buffer
	require.Equal(t, cli.ExitUnfit, run(strings.Fields("estimate --json "+args), nil, &stdout, &stderr), stderr.String())
	var e estimated
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &e))
	require.False(t, *e.Fits)
	return e
}

// Each command that would make a model fit does so when it is typed, with the value that was told.
func TestRemedies(t *testing.T) {
	long.Test(t, "tries every way to make twenty models fit")
	for args, says := range map[string]string{
		"resnet50 --train --batch 256 --fits t4":                                   "accumulated",
		"vit-l-16 --train --batch 128 --fits 3060":                                 "accumulated",
		"convnext_tiny --train --batch 512 --fits 4080":                            "autocast",
		"bert-large-uncased --train --batch 64 --seq 512 --fits a10":               "accumulated",
		"gpt2 --train --batch 16 --seq 1024 --dtype float32 --fits 8GiB":           "a third slower",
		"gpt2-xl --train --seq 1024 --fits 4060":                                   "QLoRA",
		"t5-large --train --batch 8 --fits 3060":                                   "accumulated",
		"whisper-large-v3 --train --batch 8 --fits t4":                             "accumulated",
		"llama-3-8b --train --seq 4096 --fits 24GiB":                               "LoRA adapters",
		"llama-3-8b --train --fits 4090":                                           "an eighth of the tokens",
		"llama-3-8b --lora 16 --qlora --seq 4096 --fits 4090":                      "a third slower",
		"mixtral-8x7b --train --fits a100":                                         "QLoRA",
		"phi-4 --serve --seq 16384 --fits 4090":                                    "weights in 8 bits",
		"llama-3-8b --serve --batch 16 --seq 8192 --fits 4090":                     "at once instead of 16",
		"qwen2.5-7b --serve --engine transformers --batch 4 --seq 32768 --fits l4": "512 tokens at a time",
		"gemma-3-12b-it --serve --seq 8192 --images 0 --fits t4":                   "less precise",
		"llama-3-8b --seq 32768 --gpu-layers 33 --fits 12GiB":                      "layers on the GPU",
		"qwen3-14b --serve --engine llama.cpp --fits 4080":                         "the widest of llama.cpp's quantizations",
		"llama-3-70b --serve --fits h100":                                          "8 bits",
		"gpt2 --batch 8 --gpu ampere --fits 5GiB":                                  "CUDA_MODULE_LOADING=LAZY",
		"flux.1-dev --fits 4090":                                                   "4 bits",
	} {
		e := unfit(t, args)
		require.NotEmpty(t, e.Remedies, args)
		assert.Nil(t, e.Nearest)
		var all []string
		for _, r := range e.Remedies {
			all = append(all, r.Says)
			fits := estimateJSON(t, strings.TrimPrefix(r.Command, "gpumemtrack estimate"))
			assert.True(t, *fits.Fits, r.Command)
			assert.Equal(t, fits.Needs, r.Needs, r.Command)
		}
		assert.Contains(t, strings.Join(all, "\n"), says, args)
	}
}

// The cheapest comes first, and what costs more about the same thing is not told.
func TestRemediesAreTheCheapest(t *testing.T) {
	e := unfit(t, "gpt2 --train --batch 64 --seq 512 --dtype float32 --fits 12GiB")
	require.Len(t, e.Remedies, 3)
	assert.Equal(t, []string{"--batch", "4", "--accumulate", "16"}, e.Remedies[0].Flags, "the largest batch that fits, and nothing else")
	told := map[string]bool{}
	for _, r := range e.Remedies {
		var names []string
		for _, f := range r.Flags {
			if strings.HasPrefix(f, "--") {
				names = append(names, f)
			}
		}
		about := strings.Join(names, " ")
		assert.False(t, told[about], about)
		told[about] = true
	}
}

// Of a model that fits in no way the nearest is told, with its own value.
func TestNoRemedy(t *testing.T) {
	e := unfit(t, "llama-3-70b --train --seq 8192 --fits 4GiB")
	assert.Empty(t, e.Remedies)
	require.NotNil(t, e.Nearest)
	assert.Equal(t, unfit(t, strings.TrimPrefix(e.Nearest.Command, "gpumemtrack estimate ")).Needs, e.Nearest.Needs)
	assert.Less(t, e.Nearest.Needs, e.Needs)
	var stdout, stderr bytes.Buffer
	require.Equal(t, cli.ExitUnfit, run(strings.Fields("estimate llama-3-70b --train --seq 8192 --fits 4GiB"), nil, &stdout, &stderr))
	assert.Contains(t, stdout.String(), "None of the usual changes makes it fit in 4.0 GiB, nor do two or three of them together.\nThe nearest is at most "+e.Nearest.Needs.String())
}

// What was typed stays, but for what the changes replace.
func TestCommandOfAChange(t *testing.T) {
	typed := []string{"estimate", "gpt2", "--batch=8", "--train", "--checkpoint", "h.*", "--qlora"}
	assert.Equal(t, "gpumemtrack estimate gpt2 --train --checkpoint 'h.*' --qlora --batch 4 --accumulate 2",
		command(typed, []string{"--batch", "4", "--accumulate", "2"}))
	assert.Equal(t, "gpumemtrack estimate gpt2 --batch=8 --train --checkpoint 'h.*' --lora 16 --qlora",
		command(typed, []string{"--lora", "16", "--qlora"}))
	assert.Equal(t, "gpumemtrack estimate 'my model/it'\\''s' --offload optimizer",
		command([]string{"estimate", "my model/it's"}, []string{"--offload", "optimizer"}))
}

// GPUs are known by the names that people use, and a GPU that --fits names says the generation too.
func TestGPUNames(t *testing.T) {
	for _, name := range []string{"a100", "A100-80GB", "NVIDIA A100 80GB", "RTX 4090", "rtx4090", "h100", "a100-40gb", "A100 40GB",
		"NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 3090", "Tesla T4", "Tesla V100-SXM2-16GB", "NVIDIA RTX 6000 Ada Generation",
		"NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX A6000", "A10G", "3060", "RTX 4060 Ti"} {
		_, ok := gpuNamed(name)
		assert.True(t, ok, name)
	}
	for _, name := range []string{"", "rtx", "4090 48GB", "A100 20GB", "blackwell", "voodoo"} {
		_, ok := gpuNamed(name)
		assert.False(t, ok, name)
	}
	forty, _ := gpuNamed("A100 40GB")
	eighty, _ := gpuNamed("A100 80GB")
	assert.Less(t, forty.memory, eighty.memory)
	for i := 1; i < len(gpus); i++ {
		assert.LessOrEqual(t, gpus[i-1].memory, gpus[i].memory, "the smallest that fits is the first")
	}

	named := estimateJSON(t, "resnet50 --train --batch 32 --fits l4")
	assert.Equal(t, estimateJSON(t, "resnet50 --train --batch 32 --gpu ada").DeviceUpper, named.DeviceUpper)
	assert.EqualValues(t, 2199*hundredth, named.Budget)
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(strings.Fields("estimate llama-3-8b --gpu l4"), nil, &stdout, &stderr), stderr.String())
	assert.Contains(t, stdout.String(), "so it runs on L4")
	stdout.Reset()
	require.Zero(t, run(strings.Fields("estimate llama-3-8b --seq 8192 --gpu 3060"), nil, &stdout, &stderr), stderr.String())
	assert.Contains(t, stdout.String(), "more than RTX 3060 has")
	assert.Contains(t, stdout.String(), "so it runs on A10")
	assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate resnet50 --gpu voodoo"), nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "--gpu voodoo: want a GPU or a generation, such as 4090 or ada")
}

// The answer is short: what it needs, the most, a GPU, and at most five parts.
func TestAnswer(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(strings.Fields("estimate gpt2 --train --optimizer adamw --batch 4 --seq 128"), nil, &stdout, &stderr), stderr.String())
	e := estimateJSON(t, "gpt2 --train --optimizer adamw --batch 4 --seq 128")
	text := stdout.String()
	for _, want := range []string{"it needs", e.Report.Training.Footprint.Needed.Bytes.String(), "at most", e.Needs.String(), "so it runs on RTX 4060", "optimizer", "--detail"} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "nvidia-smi shows")
	assert.LessOrEqual(t, strings.Count(text, "\n"), 24, "one screen")
}

// What would make a model of 70 billion parameters fit, for the three ways in which it runs.
func BenchmarkRemedies(b *testing.B) {
	for name, args := range map[string]string{
		"train": "llama-3-70b --train --batch 8 --seq 4096 --fits h100", "serve": "llama-3-70b --serve --batch 32 --seq 4096 --fits 24GiB",
		"llama.cpp": "llama-3-70b --serve --engine llama.cpp --batch 32 --seq 8192 --fits 4090",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var stdout, stderr bytes.Buffer
				require.Equal(b, cli.ExitUnfit, run(strings.Fields("estimate "+args), nil, &stdout, &stderr), stderr.String())
			}
		})
	}
}

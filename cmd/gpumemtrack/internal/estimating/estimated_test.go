package estimating

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// The flags that an answer says were assumed give the same answer, and leave nothing to assume.
func TestAssumedFlags(t *testing.T) {
	for args, want := range map[string]string{
		"gpt2":                               "--batch 1 --seq 1024 --dtype float32",
		"resnet50 --train":                   "--batch 1 --image 224 --optimizer adam --dtype float32",
		"llama-3-8b --train --batch 2":       "--seq 8192 --optimizer adam --dtype bfloat16",
		"gpt-oss-20b --serve --batch 4":      "--seq 512 --dtype bfloat16",
		"whisper-small --serve":              "--batch 1 --seq 448 --dtype float32",
		"t5-small --train --optimizer sgd":   "--batch 1 --seq 512 --dtype float32",
		"qwen3-8b --engine llama.cpp":        "--batch 1 --seq 512 --ubatch 512 --flash-attention=true --slots 4 --kv-unified=true",
		"mistral-7b --train --autocast bf16": "--batch 1 --seq 4096 --optimizer adam",
	} {
		e := estimateJSON(t, args)
		assert.Equal(t, want, strings.Join(e.Assumed, " "), args)
		said := estimateJSON(t, args+" "+want)
		assert.Empty(t, said.Assumed, args)
		assert.Equal(t, e.Needs, said.Needs, args)
		assert.Equal(t, e.Peak, said.Peak, args)
	}
}

// Notes of the command name flags, and none of the options that a program would set.
func TestNotesNameFlags(t *testing.T) {
	flags := map[string]bool{}
	for _, args := range []string{
		"gpt2 --train --batch 8", "resnet50 --train --optimizer sgd --batch 8", "llama-3-8b --train --lora 16 --qlora --seq 2048",
		"gpt2 --train --optimizer-form foreach --zero-grad first --batch 2", "mixtral-8x7b --serve --seq 2048", "gpt2 --gpu volta",
		"whisper-small --serve", "clip-vit-base-patch32 --train", "qwen3-8b --serve --engine llama.cpp --batch 2", "gpt2 --serve --checkpoint blocks",
	} {
		notes := estimateJSON(t, args).Report.Notes
		require.NotEmpty(t, notes, args)
		for _, note := range notes {
			assert.NotRegexp(t, `\b(Loop|Machine|Installed|Report|Precision|LoRA|Quantized)\b`, note, args)
			for word := range strings.FieldsSeq(note) {
				if strings.HasPrefix(word, "--") {
					flags[strings.TrimRight(word, ":;,.")] = true
				}
			}
		}
	}
	for _, flag := range []string{"--zero-grad", "--gpu", "--cuda-loading", "--bitsandbytes", "--prefill-chunk", "--measured"} {
		assert.True(t, flags[flag], flag)
	}
}

// What processing a prompt in pieces would save is the value that the flag gives.
func TestPromptNote(t *testing.T) {
	notes := strings.Join(estimateJSON(t, "llama-3-8b --serve --seq 32768").Report.Notes, "\n")
	cut := estimateJSON(t, "llama-3-8b --serve --seq 32768 --prefill-chunk 512")
	assert.Contains(t, notes, "prompts are processed whole, 32768 tokens at once")
	assert.Contains(t, notes, "with --prefill-chunk 512 it needs "+cut.Needs.String()+" at most")
	assert.NotContains(t, strings.Join(estimateJSON(t, "llama-3-8b --serve --seq 256").Report.Notes, "\n"), "prompts")
}

// A model that makes images is its whole pipeline: what is held beside the part that runs counts, and the images are decoded.
func TestPipelinesByName(t *testing.T) {
	flux := estimateJSON(t, "black-forest-labs/FLUX.1-dev")
	loaded := 32192.51 * float64(alloc.MiB) // measured after loading: docs/estimate-cases.csv
	assert.InEpsilon(t, loaded, float64(flux.Report.Inference.Weights), 0.001)
	assert.NotContains(t, strings.Join(flux.Report.Notes, "\n"), "counted alone")

	for name, encoder := range map[string]string{"flux.2-dev": "mistral-small-3.1-24b-instruct-2503", "flux.2-klein-base-4b": "qwen3-4b", "flux.2-klein-9b": "qwen3-8b", "qwen-image": "qwen2.5-vl-7b-instruct"} {
		pipe, denoiser := estimateJSON(t, name).Report, estimateJSON(t, name+"-transformer").Report
		assert.Equal(t, denoiser.Params.Count+estimateJSON(t, encoder).Report.Params.Count, pipe.Params.Count, name)
		assert.Contains(t, strings.Join(pipe.Notes, "\n"), "the autoencoder is not counted", name)
	}

	alone := estimateJSON(t, "sdxl-unet --batch 2")
	assert.Contains(t, strings.Join(alone.Report.Notes, "\n"), "what makes images is counted alone")
	whole := estimateJSON(t, "stabilityai/stable-diffusion-xl-base-1.0 --batch 2")
	assert.Greater(t, whole.Report.Inference.Weights, alone.Report.Inference.Weights+alloc.GiB)
	assert.Contains(t, whole.Report.Inference.PeakAt, "vae.decoder")
	assert.Less(t, estimateJSON(t, "sdxl --batch 2 --image 512").Needs, whole.Needs)

	adapted := estimateJSON(t, "sdxl --lora 16")
	assert.Less(t, adapted.Report.Trained.Count, alone.Report.Params.Count/50, "what is held is not trained")
}

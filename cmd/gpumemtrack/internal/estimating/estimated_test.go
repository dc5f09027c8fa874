package estimating

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// The flags that an answer says were assumed give the same answer, and leave nothing to assume.
func TestAssumedFlags(t *testing.T) {
	for args, want := range map[string]string{
		"gpt2":                                  "--batch 1 --seq 1024 --dtype float32",
		"resnet50 --train":                      "--batch 1 --image 224 --optimizer adam --dtype float32",
		"llama-3-8b --train --batch 2":          "--seq 2048 --optimizer adam --dtype bfloat16",
		"gpt-oss-20b --serve --batch 4":         "--seq 131072 --max-batched-tokens 2048", // the weights are published in no element type
		"whisper-small --serve":                 "--batch 1 --seq 448 --dtype float32 --max-batched-tokens 2048",
		"t5-small --train --optimizer sgd":      "--batch 1 --seq 512 --dtype float32",
		"qwen3-8b --engine llama.cpp":           "--batch 1 --seq 40960 --ubatch 512 --flash-attention=auto --slots 4 --kv-unified=true",
		"qwen3-8b --engine vllm --fits h100":    "--batch 1 --seq 40960 --dtype bfloat16 --attention flash --max-batched-tokens 8192",
		"qwen3-8b --engine transformers":        "--batch 1 --seq 2048 --dtype bfloat16",
		"mistral-7b --train --autocast bf16":    "--batch 1 --seq 2048 --optimizer adam",
		"mistral-7b --serve --prefill-chunk 64": "--batch 1 --seq 32768 --dtype bfloat16",
	} {
		e := estimateJSON(t, args)
		assert.Equal(t, want, strings.Join(e.Assumed, " "), args)
		said := estimateJSON(t, args+" "+want)
		assert.Empty(t, said.Assumed, args)
		assert.Equal(t, e.Peak, said.Peak, args)
		assert.Equal(t, e.Needs, said.Needs, args)
	}
}

// However a model is named, the same is assumed of it, and the answer is the same.
func TestSpellingsOfAModel(t *testing.T) {
	for context, names := range map[int][]string{
		8192: {"llama-3-8b", "meta-llama/Meta-Llama-3-8B-Instruct", "llama3:8b"}, 32768: {"qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"}, 40960: {"qwen3-0.6b", "Qwen/Qwen3-0.6B"},
		131072: {"gpt-oss-20b", "openai/gpt-oss-20b"}, 512: {"bert-base-uncased", "google-bert/bert-base-uncased"}, 2048: {"mamba-130m-hf"}, 163840: {"deepseek-v3"},
	} {
		m, err := zoo.ByName(names[0])
		require.NoError(t, err)
		folder := filepath.Join(t.TempDir(), names[0])
		require.NoError(t, os.Mkdir(folder, 0o700))
		config := filepath.Join(folder, "config.json")
		require.NoError(t, os.WriteFile(config, m.Config, 0o600))
		for _, mode := range []string{"", " --train", " --serve", " --engine llama.cpp"} {
			if _, err := m.Cache(1, 1); err != nil && mode != "" && mode != " --train" {
				continue
			}
			want := estimateJSON(t, names[0]+mode)
			for _, name := range append(names[1:], config, folder) {
				got := estimateJSON(t, name+mode)
				assert.Equal(t, want.Report.Inputs, got.Report.Inputs, name+mode)
				assert.Equal(t, want.Context, got.Context, name+mode)
				assert.Equal(t, want.Needs, got.Needs, name+mode)
			}
			var out, stderr bytes.Buffer
			require.Zero(t, run(strings.Fields("estimate "+names[0]+mode), nil, &out, &stderr), stderr.String())
			first, _, _ := strings.Cut(out.String(), "\n")
			tokens := context
			if mode == "" || mode == " --train" {
				tokens = min(context, 2048)
			}
			assert.Contains(t, first, fmt.Sprintf(", 1 x %s tokens (assumed)", text.Grouped(tokens)), names[0]+mode)
		}
	}
}

// Notes of the command name flags, and none of the options that a program would set.
func TestNotesNameFlags(t *testing.T) {
	flags := map[string]bool{}
	for _, args := range []string{
		"gpt2 --train --batch 8", "resnet50 --train --optimizer sgd --batch 8", "llama-3-8b --train --lora 16 --qlora --seq 2048",
		"gemma-3-1b-it --serve --engine transformers --seq 4096", "gpt2 --train --optimizer-form foreach --zero-grad first --batch 2", "mixtral-8x7b --serve --seq 2048", "gpt2 --gpu volta",
		"whisper-small --serve", "clip-vit-base-patch32 --train", "qwen3-8b --serve --engine llama.cpp --batch 2", "gpt2 --serve --checkpoint blocks",
	} {
		e := estimateJSON(t, args)
		notes := e.Report.Notes
		for _, term := range e.memory().Uncertain {
			notes = append(notes, term.Reason)
		}
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
	notes := strings.Join(estimateJSON(t, "llama-3-8b --serve --engine transformers --seq 32768").Report.Notes, "\n")
	cut := estimateJSON(t, "llama-3-8b --serve --engine transformers --seq 32768 --prefill-chunk 512")
	assert.Contains(t, notes, "prompts are processed whole, 32,768 tokens at once")
	assert.Contains(t, notes, "with --prefill-chunk 512 it needs "+cut.Needs.String()+" at most")
	assert.NotContains(t, strings.Join(estimateJSON(t, "llama-3-8b --serve --engine transformers --seq 256").Report.Notes, "\n"), "prompts")
}

// A model that makes images is its whole pipeline: what is held beside the part that runs counts, and the images are decoded.
func TestPipelinesByName(t *testing.T) {
	flux := estimateJSON(t, "black-forest-labs/FLUX.1-dev")
	loaded := 32192.51 * float64(alloc.MiB) // measured after loading: docs/estimate-cases.csv
	assert.InEpsilon(t, loaded, float64(flux.Report.Inference.Weights), 0.001)
	assert.NotContains(t, strings.Join(flux.Report.Notes, "\n"), "counted alone")

	autoencoders := map[bool]int64{true: 84046115, false: 126892531} // of FLUX.2 and of Qwen-Image, counted by diffusers
	for name, encoder := range map[string]string{"flux.2-dev": "mistral-small-3.1-24b-instruct-2503", "flux.2-klein-base-4b": "qwen3-4b", "flux.2-klein-9b": "qwen3-8b", "qwen-image": "qwen2.5-vl-7b-instruct"} {
		pipe, denoiser := estimateJSON(t, name).Report, estimateJSON(t, name+"-transformer").Report
		assert.Equal(t, denoiser.Params.Count+estimateJSON(t, encoder).Report.Params.Count+autoencoders[strings.HasPrefix(name, "flux")], pipe.Params.Count, name)
		assert.Empty(t, pipe.Missing, name)
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

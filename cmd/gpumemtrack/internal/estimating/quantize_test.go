package estimating

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

// firstLine is the first line of an answer.
func firstLine(t *testing.T, args string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(strings.Fields("estimate "+args), nil, &stdout, &stderr), stderr.String())
	line, _, _ := strings.Cut(stdout.String(), "\n")
	return line
}

func TestPublishedTypes(t *testing.T) {
	assert.Contains(t, firstLine(t, "gpt-oss-20b --seq 512"), "12.8 GiB (as published: MXFP4 experts, bfloat16 the rest)")
	assert.Contains(t, firstLine(t, "gpt-oss-20b --seq 512 --dtype bfloat16"), "39.0 GiB, ")
	assert.Contains(t, firstLine(t, "deepseek-r1 --seq 16"), "(as published: FP8 in blocks of 128 x 128, bfloat16 the rest)")
	assert.Contains(t, firstLine(t, "qwen3-8b-fp8 --seq 16"), "8.8 GiB (as published: FP8")
	assert.NotContains(t, firstLine(t, "gpt-oss-20b --train --lora 8 --lora-targets q_proj --seq 16"), "as published")
	assert.Equal(t, 0, run(strings.Fields("estimate gpt-oss-20b --serve --seq 2048 --fits 24GiB"), nil, io.Discard, io.Discard))
	two := estimateJSON(t, "deepseek-v3 --serve --seq 2048 --tp 8")
	assert.Less(t, two.Report.Inference.Weights, 85*alloc.GiB, "packed weights divide among devices")
}

func TestGGUFQuantizations(t *testing.T) {
	assert.Contains(t, firstLine(t, "llama-3.1-8b --serve --engine llama.cpp --quantize q4_k_m"), "4.6 GiB (Q4_K_M)")
	assert.Contains(t, firstLine(t, "gpt-oss-20b --engine llama.cpp --quantize mxfp4 --seq 512"), "11.3 GiB (MXFP4_MOE)")
	kept := estimateJSON(t, "gpt-oss-20b --engine llama.cpp --quantize q4_k_m --seq 512").Report.Notes
	assert.Contains(t, strings.Join(kept, "\n"), "--allow-requantize")
	r := estimateJSON(t, "llama-3.1-8b --engine llama.cpp --quantize Q8_0 --seq 512").Report
	assert.InEpsilon(t, 8.5008/8*8030261248, float64(r.Params.Bytes), 0.001)
	for args, want := range map[string]string{
		"llama-3.1-8b --serve --quantize q4_k_m":                              "it needs --engine llama.cpp",
		"llama-3.1-8b --engine llama.cpp --quantize nf4":                      "nf4 is not llama.cpp's: want one of",
		"llama-3.1-8b --engine llama.cpp --quantize q9":                       "want one of",
		"llama-3.1-8b --engine llama.cpp --quantize q8_0 --dtype bf16":        "without --dtype",
		"llama-3.1-8b --engine llama.cpp --quantize q8_0 --best-quantization": "--best-quantization",
	} {
		var stderr bytes.Buffer
		assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate "+args), nil, io.Discard, &stderr), args)
		assert.Contains(t, stderr.String(), want)
	}
}

// Older builds of llama.cpp quantize projections that make queries, keys and values together by rules of their own.
func TestQuantizedByBuild(t *testing.T) {
	size := func(args string) alloc.Bytes {
		return estimateJSON(t, "phi-4 --seq 512 --engine llama.cpp --quantize q3_k_m "+args).Report.Params.Bytes
	}
	today := size("")
	assert.NotEqual(t, today, size("--engine-version b8000"))
	assert.Equal(t, today, size("--engine-version b8680"))
	assert.Equal(t, today, size("--engine-version 0.5.0"))
}

func TestQuantizedParts(t *testing.T) {
	held := func(args string) alloc.Bytes {
		m := estimateJSON(t, "flux.1-dev "+args).Report.Inference
		return m.Weights + m.Buffers
	}
	wide := held("")
	// T5's encoder has 24 blocks: four projections of 4096 x 4096, and two of an MLP that are not kept in float32.
	const elements, rows = 24 * (4*4096*4096 + 2*10240*4096), 24 * (4*4096 + 2*10240)
	assert.Equal(t, alloc.Bytes(elements-4*rows), wide-held("--quantize text_encoder_2=int8"))
	assert.Equal(t, alloc.Bytes(2*elements-elements/2-elements/16), wide-held("--quantize text_encoder_2=nf4"))
	assert.Equal(t, wide-held("--quantize transformer=nf4"), wide-held("--quantize nf4"), "what runs, unless parts are named")
	assert.Equal(t, wide-held("--quantize transformer=nf4")+elements-4*rows, wide-held("--quantize transformer=nf4,text_encoder_2=int8"))

	notes := strings.Join(estimateJSON(t, "flux.1-dev --quantize nf4").Report.Notes, "\n")
	assert.Contains(t, notes, "quantized: the linear layers of transformer; text_encoder, text_encoder_2 and vae stay bfloat16")
	for args, want := range map[string]string{
		"flux.1-dev --quantize tx=nf4":                          "the pipeline's parts are transformer, text_encoder, text_encoder_2, vae",
		"flux.1-dev --quantize transformer=q9":                  "want one of nf4",
		"flux.1-dev --quantize transformer=nf4,transformer=nf4": "want each part once",
		"gpt2 --quantize a=nf4":                                 "no pipeline of several parts",
	} {
		var stderr bytes.Buffer
		assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate "+args), nil, io.Discard, &stderr), args)
		assert.Contains(t, stderr.String(), want)
	}
	var stderr bytes.Buffer
	assert.NotEqual(t, 0, run(strings.Fields("estimate flux.2-dev --quantize text_encoder=nf4"), nil, io.Discard, &stderr))
	assert.Contains(t, stderr.String(), "only the size of this part is known")
}

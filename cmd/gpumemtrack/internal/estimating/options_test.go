package estimating

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

// A loss over the vocabulary is most of what training a small language model on long texts needs.
func TestEstimateLoss(t *testing.T) {
	const base = "gpt2 --train --batch 8 --seq 512 --dtype bfloat16 "
	peak := func(flags string) float64 { return float64(estimateJSON(t, base+flags).Peak) }
	logits := 8.0 * 512 * 50257
	usual := peak("")
	assert.Greater(t, usual, peak("--loss none")+8*logits, "float32 copies, beside the logits")
	chunked, fused, liger := peak("--loss-chunks 8"), peak("--loss fused"), peak("--loss liger")
	assert.Less(t, chunked, usual-3*logits)
	assert.Less(t, fused, usual-3*logits)
	assert.Less(t, peak("--loss fused --loss-chunks 8"), chunked)
	assert.Less(t, liger, chunked)
	assert.Less(t, peak("--loss sum"), usual-3*logits)
	assert.Greater(t, peak("--loss sum"), peak("--loss liger")+logits, "the logits are there")
	assert.Less(t, estimateJSON(t, "resnet50 --train").Peak, estimateJSON(t, "resnet50 --train --batch 2").Peak, "no language model")
}

func TestEstimateSequenceParallel(t *testing.T) {
	const base = "gpt2 --train --batch 8 --seq 512 --dtype bfloat16 --tp 4 "
	whole, kept, again := estimateJSON(t, base).Report.Retained, estimateJSON(t, base+"--sp kept").Report.Retained, estimateJSON(t, base+"--sp again").Report.Retained
	assert.Less(t, again, kept)
	assert.Less(t, kept, whole)
	assert.Greater(t, whole, estimateJSON(t, base+"--engine torchtitan").Report.Retained, "as it does by default")
}

func TestEstimateFSDP2(t *testing.T) {
	const base = "llama-3-8b --train --dtype float32 --seq 2048 --replicas 8 --zero 3 "
	parts, units := estimateJSON(t, base), estimateJSON(t, base+"--sharded-by fsdp2")
	assert.Equal(t, parts.Report.Training.Weights, units.Report.Training.Weights)
	assert.Greater(t, units.Peak, parts.Peak, "buffers, and whole gradients of a block")
	assert.Less(t, estimateJSON(t, base+"--sharded-by fsdp2 --shard-ends").Peak, units.Peak)
	assert.Less(t, estimateJSON(t, base+"--sharded-by fsdp2 --expandable-segments").Report.Training.Footprint.Reserved.Bytes, units.Report.Training.Footprint.Reserved.Bytes)
	narrow := estimateJSON(t, base+"--sharded-by fsdp2 --compute-dtype bf16").Report.Training
	assert.Equal(t, units.Report.Training.Weights, narrow.Weights)
	assert.Less(t, narrow.Saved, units.Report.Training.Saved)
	titan := estimateJSON(t, "llama-3-8b --engine torchtitan --replicas 8").Report.Training
	assert.Equal(t, narrow.Weights, titan.Weights, "float32, divided")
}

func TestEstimateExperts(t *testing.T) {
	const base = "mixtral-8x7b --train --dtype bfloat16 --seq 2048 --replicas 8 "
	whole, shared := estimateJSON(t, base).Report.Training, estimateJSON(t, base+"--ep 8").Report.Training
	assert.Less(t, shared.Weights, whole.Weights/5)
	assert.Less(t, shared.Optimizer, whole.Optimizer/5)
	assert.Equal(t, shared.Weights, estimateJSON(t, strings.Replace(base, "--replicas 8", "--replicas 16", 1)+"--ep 8").Report.Training.Weights)
	var stdout, stderr bytes.Buffer
	require.Equal(t, cli.ExitUsage, run(strings.Fields("estimate mixtral-8x7b --train --replicas 2 --tp 2 --ep 8"), nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "--ep 8 needs as many devices that share the experts, and --replicas and --tp give 4: give --replicas 8, or --tp 8")
	const scout = "llama-4-scout-17b-16e --train --dtype bfloat16 --seq 2048 --images 0 "
	assert.Less(t, estimateJSON(t, scout+"--experts grouped").Report.Retained, estimateJSON(t, scout).Report.Retained/3)
}

func TestEstimateQuantize(t *testing.T) {
	const serve = "llama-3-8b --serve --seq 512 "
	whole := estimateJSON(t, serve).Report.Inference
	for flags, share := range map[string]float64{"nf4": 0.3753, "nf4-double": 0.3551, "int8": 0.5655, "gptq": 0.3568} {
		m := estimateJSON(t, serve+"--quantize "+flags).Report.Inference
		assert.InDelta(t, share, float64(m.Weights+m.Buffers)/float64(whole.Weights), 0.001, flags)
	}
	qlora := estimateJSON(t, "gpt2 --train --lora 8 --qlora --lora-targets c_attn")
	assert.Equal(t, qlora.Peak, estimateJSON(t, "gpt2 --train --lora 8 --quantize nf4 --lora-targets c_attn").Peak)
}

func TestEstimateLossAndQuantizeSayWhatIsWrong(t *testing.T) {
	for flags, want := range map[string]string{
		"gpt2 --train --loss mse":                                       "want one of usual, fused, liger, cce, trl, torchtitan, sum, none",
		"gpt2 --train --tp 2 --sp twice":                                "want one of kept, again",
		"gpt2 --train --compute-dtype bf16 --autocast bf16":             "choose one of --compute-dtype and --autocast",
		"gpt2 --train --compute-dtype q8_0":                             "--compute-dtype",
		"gpt2 --train --sharded-by ddp":                                 "want one of fsdp2, deepspeed",
		"gpt2 --train --experts each":                                   "want one of grouped, loop",
		"gpt2 --train --ep 0":                                           "want 1 or more",
		"gpt2 --train --loss-chunks 0":                                  "want 1 or more",
		"resnet50 --train --loss fused":                                 "for models that predict the next token",
		"gpt2 --train --loss sum --loss-chunks 2":                       "--loss sum has no chunks",
		"gpt2 --quantize q4":                                            "want one of nf4, nf4-double",
		"gpt2 --train --lora 8 --qlora --quantize nf4":                  "goes with neither --qlora nor --best-quantization",
		"llama-3-8b --serve --engine llama.cpp --seq 64 --quantize nf4": "nf4 is not llama.cpp's: want one of iq1_s",
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate "+flags), nil, &stdout, &stderr), flags)
		assert.Contains(t, stderr.String(), want)
	}
}

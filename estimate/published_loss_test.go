package estimate_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// headless is the model without its head, and a head that takes its loss by itself.
func headless(c family.Transformer, l layer.HeadLoss) []tape.Layer {
	l.Linear = layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true}
	if c.Tied {
		l.Tied = ".model.embed_tokens.weight"
	}
	c.NoHead = true
	return with(c.Layers(), tape.As("lm_head", l))
}

// torchtuneRows are the table of optimization flags: with torch.compile, losses by chunks and
// checkpoints, and then with the optimizer in the backward pass; and that of recipes with adapters
// on an RTX 4090. A fused AdamW is assumed.
func torchtuneRows() []published {
	var rows []published
	for _, r := range []struct {
		how        string
		inBackward bool
		gib        float64
	}{{"", false, 24.9}, {", optimizer in backward", true, 23.1}} {
		loop := estimate.Loop{ZeroGrad: estimate.ZeroGradFirst, Output: estimate.OutputDropped, Form: estimate.Fused, InBackward: r.inBackward}
		rows = append(rows, published{
			kind: "transformer", model: "Llama 3.2 3B, 4096 tokens", setting: "batch 2, bfloat16, compiled, loss of 8 chunks, checkpointed, fused AdamW" + r.how, grade: "B",
			mib: r.gib * 1024, what: "allocated", source: "pytorch/torchtune, README.md at 1814feb17",
			layers: headless(llama3b, layer.HeadLoss{Chunks: 8, Loss: layer.NextToken{Fused: true}}),
			opts: opts(estimate.Tokens(2, 4096), estimate.Precision(alloc.BFloat16), estimate.Train(estimate.AdamW), estimate.Checkpointed("model.layers.*"), estimate.PyTorch(2, 5),
				loop, estimate.Machine{GPU: estimate.Ampere, Loading: estimate.LazyLoading}),
		})
	}
	lora := estimate.LoRA{Rank: 8, Targets: []string{"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}, DType: alloc.BFloat16}
	for _, r := range []struct {
		how  string
		base estimate.Base
		gib  float64
	}{{"LoRA of rank 8 on bfloat16", estimate.WholeBase, 16.2}, {"QLoRA of rank 8, NF4 twice quantized", estimate.NF4Double, 7.4}} {
		rows = append(rows, published{
			kind: "LoRA", model: "Llama 3.1 8B, 2048 tokens", setting: "batch 2, " + r.how + ", compiled, loss of 8 chunks, checkpointed", grade: "B",
			mib: r.gib * 1024, what: "allocated", source: "pytorch/torchtune, README.md at 0031bfb0",
			layers: headless(llama8b, layer.HeadLoss{Chunks: 8, Loss: layer.NextToken{Fused: true}}),
			opts: opts(estimate.Tokens(2, 2048), estimate.Precision(alloc.BFloat16), estimate.Train(estimate.AdamW), qlora(r.base, lora), estimate.Checkpointed("model.layers.*"), estimate.PyTorch(2, 5),
				estimate.Loop{ZeroGrad: estimate.ZeroGradFirst, Output: estimate.OutputDropped, Form: estimate.Fused}, estimate.Machine{GPU: estimate.Ada, Loading: estimate.LazyLoading}),
		})
	}
	return rows
}

// fmsRows are further runs of the table that has Mistral's rows with LoRA: full ones, GPTQ's base,
// larger models, and Llama 3 8B with Liger's loss.
func fmsRows() []published {
	const refs = "foundation-model-stack/fms-acceleration, scripts/benchmarks/refs/"
	llama70b := family.Transformer{Vocab: 32000, Hidden: 8192, FFN: 28672, Blocks: 80, Heads: 64, KVHeads: 8}
	train := func(model, setting, file string, batch int, bytes float64, layers []tape.Layer, d alloc.DType, more ...estimate.Option) published {
		kind := "transformer"
		if len(more) > 0 {
			kind = "LoRA"
		}
		return published{
			kind: kind, model: model + ", 4096 tokens", setting: fmt.Sprintf("batch %d, %s, checkpointed", batch, setting), grade: "B", mib: bytes / float64(alloc.MiB), what: "allocated",
			source: refs + file, layers: layers,
			opts: append(opts(estimate.Tokens(batch, 4096), estimate.Precision(d), estimate.Train(estimate.AdamW), estimate.Checkpointed("model.layers.*"), estimate.PyTorch(2, 4), estimate.Attends(estimate.FlashAttention),
				trainer, estimate.Machine{GPU: estimate.Ampere, Loading: estimate.LazyLoading}), more...),
		}
	}
	lora := func(b estimate.Base) estimate.Option {
		return qlora(b, estimate.LoRA{Rank: 16, Targets: []string{"q_proj", "k_proj", "v_proj", "o_proj"}, Dropout: 0.1})
	}
	const last, liger = "a100_80gb_update_cross_entropy_and_deps.csv at bfdef09c", "a100_80gb_liger.csv at 12ebdb90"
	rows := []published{
		train("Mistral 7B", "LoRA of rank 16 on GPTQ, float16", "a100_80gb.csv at 24bdadb", 4, 16404148736, with(mistral7b.Layers(), layer.NextToken{}), alloc.Float16, lora(estimate.GPTQBase)),
		train("Llama 2 70B", "QLoRA of rank 16, NF4 twice quantized", last, 4, 68126381056, with(llama70b.Layers(), layer.NextToken{}), alloc.BFloat16, lora(estimate.NF4Double)),
	}
	for i, bytes := range []float64{36731843072, 48770183680} {
		rows = append(rows, train("Mixtral 8x7B", "QLoRA of rank 16, NF4 twice quantized", last, 4<<i, bytes, with(mixtral.Layers(), layer.NextToken{}), alloc.BFloat16, lora(estimate.NF4Double)))
	}
	for i, bytes := range []float64{72434837504, 72435230720} {
		rows = append(rows, train("Mistral 7B", "bfloat16, AdamW", last, 4<<i, bytes, with(mistral7b.Layers(), layer.NextToken{}), alloc.BFloat16))
	}
	for _, r := range []struct {
		name  string
		model family.Transformer
		base  estimate.Base
		bytes []float64 // with batches of 2 and 4
	}{
		{"Mistral 7B", mistral7b, estimate.WholeBase, []float64{15144870400, 21959827968}},
		{"Mistral 7B", mistral7b, estimate.NF4Double, []float64{9424594432, 15970067968}},
		{"Llama 2 70B", llama70b, estimate.NF4Double, []float64{46685287936}},
		{"Mixtral 8x7B", mixtral, estimate.WholeBase, []float64{57554708992, 64851605504}},
		{"Mixtral 8x7B", mixtral, estimate.NF4Double, []float64{21126185472}},
	} {
		how := map[estimate.Base]string{estimate.WholeBase: "LoRA of rank 16 on bfloat16, FSDP, one of 2", estimate.NF4Double: "QLoRA of rank 16, NF4 twice quantized, FSDP, one of 2"}[r.base]
		for i, bytes := range r.bytes {
			rows = append(rows, train(r.name, how, last, 2<<i, bytes, with(r.model.Layers(), layer.NextToken{}), alloc.BFloat16, lora(r.base), two))
		}
	}
	inForward := func() []tape.Layer { return headless(llama8b, layer.HeadLoss{InForward: true}) }
	for i, bytes := range []float64{80318097408, 80318490624} {
		rows = append(rows, train("Llama 3 8B", "bfloat16, AdamW, Liger's loss", liger, 4<<i, bytes, inForward(), alloc.BFloat16))
	}
	for i, bytes := range []float64{24905936896, 33567698944, 50891223040} {
		rows = append(rows, train("Llama 3 8B", "LoRA of rank 16 on bfloat16, Liger's loss", liger, 4<<i, bytes, inForward(), alloc.BFloat16, lora(estimate.WholeBase)))
	}
	return rows
}

// octocoderRows are quantized as the tutorial does it, with the defaults of its time: FP4 that
// computes in float32, and float16 for the rest.
func octocoderRows() []published {
	var rows []published
	for _, r := range []struct {
		how string
		gib float64
		q   estimate.Quantized
	}{
		{"8 bits", 15.219234466552734, estimate.Quantized{Base: estimate.Int8Base}},
		{"FP4", 9.543574333190918, estimate.Quantized{Base: estimate.NF4, Computes: alloc.Float32}},
	} {
		rows = append(rows, published{
			kind: "served", model: "octocoder (15.5B)", setting: r.how + ", a prompt and 60 tokens", grade: "B", mib: r.gib * 1024, what: "allocated",
			source: "huggingface/transformers, llm_tutorial_optimization.md at 008f5c8c", layers: octocoder.Layers(),
			opts: opts(estimate.Tokens(1, 20), estimate.Precision(alloc.Float16), estimate.KVConfig(octocoder.Cache(1, 80, alloc.Float16)), r.q, estimate.Bitsandbytes(0, 41, 0),
				estimate.Machine{GPU: estimate.Ampere, Loading: estimate.LazyLoading}),
		})
	}
	return rows
}

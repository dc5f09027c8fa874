package estimate_test

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/encoder"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/seq2seq"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// furtherRows are models of transformers in settings that no flag gives.
func furtherRows() []owned {
	rows := slices.Concat(hubRows(), adapterRows())
	bert := family.Transformer{Family: encoder.BERT, Vocab: 30522, Hidden: 768, Blocks: 12, Heads: 12, Positions: 512, Tied: true, Dropout: 0.1, Head: family.Head{MaskedLM: true}, Attention: family.Attention{Plain: true}}
	for _, tokens := range []int{128, 512} {
		rows = append(rows, owned{
			model: fmt.Sprintf("bert-base, %d tokens", tokens), setting: "batch 8", layers: bert.Layers(),
			opts: opts(estimate.Tokens(8, tokens), estimate.Installed("torch==1.4"), estimate.Machine{GPU: "turing", Loading: "eager"}),
		})
	}
	decoder := family.Transformer{Vocab: 10000, Hidden: 512, FFN: 1344, Blocks: 4, Heads: 16, Attention: family.Attention{Plain: true}}
	return append(rows, owned{
		model: "four layers of 512, 200 tokens", setting: "batch 10, bfloat16 autocast, Adam one by one", layers: with(decoder.Layers(), layer.CrossEntropy{}),
		opts: opts(estimate.Tokens(10, 200), estimate.Autocast(alloc.BFloat16), estimate.Train("adamw"),
			estimate.Loop{ZeroGrad: "first", Output: "held", Form: "one-by-one"}),
	}, owned{ // as the tutorial quantizes it, with the defaults of its time: float16 for the rest
		model: "octocoder (15.5B)", setting: "FP4, a prompt and 60 tokens", layers: octocoder.Layers(),
		opts: opts(estimate.Tokens(1, 20), estimate.Precision(alloc.Float16), estimate.KVConfig(octocoder.Cache(1, 80, alloc.Float16)),
			estimate.Quantized{Base: "nf4", Computes: alloc.Float32}, estimate.Installed("bitsandbytes==0.41.0"), lazyAmpere),
	})
}

// hubRows are LitGPT's runs with its files of settings, whose samples are cut at 512 tokens: at least one
// is taken to be as long. Transformers' layers stand for LitGPT's, which quantizes the head too; its bitsandbytes
// restored float16 and kept inputs, and Fabric makes logits float32.
func hubRows() []owned {
	gemma2b := family.Transformer{Family: family.Gemma, Vocab: 256000, Hidden: 2048, FFN: 16384, Blocks: 18, Heads: 8, KVHeads: 1, HeadSize: 256, Tied: true}
	gemma7b := family.Transformer{Family: family.Gemma, Vocab: 256000, Hidden: 3072, FFN: 24576, Blocks: 28, Heads: 16, HeadSize: 256, Tied: true}
	gemma9b := family.Transformer{Family: family.Gemma2, Vocab: 256000, Hidden: 3584, FFN: 14336, Blocks: 42, Heads: 16, KVHeads: 8, HeadSize: 256, Tied: true, Attention: family.Attention{CappedScores: true}, Head: family.Head{CappedLogits: true}}
	falcon7b := family.Transformer{Family: family.Falcon, Vocab: 65024, Hidden: 4544, Blocks: 32, Heads: 71, KVHeads: 1, Parallel: true, Tied: true}
	phi2 := family.Transformer{Family: family.Phi, Vocab: 51200, Hidden: 2560, Blocks: 32, Heads: 32, Attention: family.Attention{RotaryDim: 32}, Activation: layer.UseGELUTanh}
	stableLM := family.Transformer{Family: family.GPTNeoX, Vocab: 50688, Hidden: 4096, FFN: 16384, Blocks: 16, Heads: 32, Attention: family.Attention{RotaryDim: 32, QKVBias: true}, Parallel: true, Bias: true}
	packed, some := []string{"query_key_value"}, []string{"q_proj", "v_proj"}
	all := []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}
	ofPhi := []string{"q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2", "lm_head"}
	var rows []owned
	for _, r := range []struct {
		name        string
		model       family.Transformer
		batch, rank int
		targets     []string
		dropout     float64
	}{
		{"Falcon 7B", falcon7b, 1, 32, packed, 0.05}, {"Gemma 2B", gemma2b, 2, 16, all, 0.1}, {"Gemma 7B", gemma7b, 1, 16, all, 0.1}, {"Gemma 2 9B", gemma9b, 1, 16, all, 0.1},
		{"Llama 2 7B", llama7b, 2, 32, some, 0.05}, {"Llama 3 8B", llama8b, 2, 32, some, 0.05}, {"Mistral 7B", mistral7b, 2, 32, some, 0.05}, {"phi-2", phi2, 4, 8, ofPhi, 0.05},
		{"StableLM Alpha 3B", stableLM, 1, 32, packed, 0.05}, {"TinyLlama 1.1B", tinyLlama, 8, 32, all, 0.05},
	} {
		rows = append(rows, hubRow(r.name, r.model, "QLoRA", r.batch, estimate.LoRA{Rank: r.rank, Targets: r.targets, Dropout: r.dropout, DType: alloc.BFloat16},
			estimate.Quantized{Base: "nf4", Layers: []string{"*"}}, estimate.Installed("bitsandbytes==0.41.0")))
	}
	return append(rows, hubRow("phi-2", phi2, "LoRA", 4, estimate.LoRA{Rank: 8, Targets: ofPhi, Dropout: 0.05, DType: alloc.BFloat16}))
}

func hubRow(name string, m family.Transformer, how string, batch int, lora estimate.LoRA, more ...estimate.Option) owned {
	return owned{
		model: name + ", 512 tokens", setting: fmt.Sprintf("batch %d, %s of rank %d on bfloat16, LitGPT", batch, how, lora.Rank), layers: with(m.Layers(), layer.NextToken{Shifts: true}),
		opts: append(more, estimate.Tokens(batch, 512), estimate.Precision(alloc.BFloat16), estimate.Train("adamw"), estimate.Installed("torch==2.2"), lazyAmpere, lora),
	}
}

// adapterRows are those of the table of PEFT's first README, over tweets of about 64 tokens and answers of four.
func adapterRows() []owned {
	t0 := family.Transformer{Family: seq2seq.T5, Vocab: 32128, Hidden: 2048, HeadSize: 64, FFN: 5120, Blocks: 24, Heads: 32, Dropout: 0.1, GatedFFN: true, Attention: family.Attention{Buckets: 32}}
	mt0 := t0
	mt0.Vocab, mt0.Hidden, mt0.FFN, mt0.Heads = 250112, 4096, 10240, 64
	bloomz := family.Transformer{Family: family.Bloom, Vocab: 250880, Hidden: 4096, Blocks: 30, Heads: 32, Tied: true}
	row := func(model, setting string, layers []tape.Layer, more ...estimate.Option) owned {
		return owned{
			model: model + ", about 64 tokens", setting: "batch 8, " + setting + "; GB taken as GiB", layers: layers,
			opts: append(opts(estimate.Tokens(8, 64), estimate.Train("adamw"), estimate.Installed("torch==1.13"), estimate.Machine{GPU: "ampere"}), more...),
		}
	}
	lora := func(targets ...string) estimate.Option {
		return estimate.LoRA{Rank: 8, Targets: targets, Dropout: 0.1}
	}
	answer, adapted := estimate.Tokens(8, 4), "LoRA of rank 8 on float32"
	return []owned{
		row("T0_3B (T5)", "AdamW", with(t0.Layers(), layer.CrossEntropy{}), answer),
		row("T0_3B (T5)", adapted, with(t0.Layers(), layer.CrossEntropy{}), answer, lora("q", "v")),
		row("mt0-xxl (T5)", adapted, with(mt0.Layers(), layer.CrossEntropy{}), answer, lora("q", "v")),
		row("BLOOMZ 7B1", adapted, with(bloomz.Layers(), layer.NextToken{Shifts: true}), lora("query_key_value")),
	}
}

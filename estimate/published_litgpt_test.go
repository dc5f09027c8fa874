package estimate_test

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// litGPT is a model of lit-gpt at 8641822 (lit_gpt/model.py, lora.py), which finetune/lora.py trains with
// LoRA of queries and values.
type litGPT struct {
	vocab, hidden, ffn, blocks, heads, rotated int
	parallel                                   bool // attention and MLP are, after one norm, with biases, as phi's
	twoNorms                                   bool // of parallel parts (StableLM)
}

var (
	litLlama7b  = litGPT{vocab: 32000, hidden: 4096, ffn: 11008, blocks: 32, heads: 32, rotated: 128}
	litLlama13b = litGPT{vocab: 32000, hidden: 5120, ffn: 13824, blocks: 40, heads: 40, rotated: 128}
	litPhi      = litGPT{vocab: 51200, hidden: 2048, ffn: 8192, blocks: 24, heads: 32, rotated: 32, parallel: true}
	litStableLM = litGPT{vocab: 50688, hidden: 4096, ffn: 16384, blocks: 16, heads: 32, rotated: 32, parallel: true, twoNorms: true}
)

// linear is a layer of the base, whose bias is the parallel models'.
func (m litGPT) linear(in, out int) layer.Linear {
	return layer.Linear{In: in, Out: out, NoBias: !m.parallel}
}

// norm is nn.LayerNorm, or RMSNorm of lit_gpt/rmsnorm.py.
func (m litGPT) norm() tape.Layer {
	if m.parallel {
		return layer.LayerNorm{Size: m.hidden}
	}
	return rmsNorm{m.hidden}
}

type rmsNorm struct{ features int }

func (n rmsNorm) Declare(d *tape.Declaration) { d.Param("weight", n.features) }

// Forward is in the type of x. The mean keeps the squares, as it did in PyTorch 2.1.
func (rmsNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	squares := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Keep: []tape.Tensor{x}})
	root := t.Op(tape.Op{In: []tape.Tensor{squares}, Shape: append(x.Shape[:2:2], 1), Keep: []tape.Tensor{squares}, KeepOutput: true})
	y := t.Op(tape.Op{In: []tape.Tensor{x, root}, Shape: x.Shape, Keep: []tape.Tensor{x, root}})
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: x.Shape, Params: true})
}

// adapters are the A and B of LoRA for queries and values in one, in the type of the model.
type adapters struct{ hidden, rank int }

func (a adapters) Declare(d *tape.Declaration) {
	d.Param("lora_A", 2*a.rank, a.hidden)
	d.Param("lora_B", 2*a.hidden, a.rank)
}

// Forward is LoRAQKVLinear.forward beside the base: x with dropout times A, a grouped convolution
// with B, which zero_pad copies into the places of queries and values, and a multiple.
// index_copy keeps what it copies (PyTorch's derivatives.yaml).
func (a adapters) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	x = layer.Dropout{P: 0.05}.Forward(t, x)
	low, wide, padded := slices.Clone(x.Shape), slices.Clone(x.Shape), slices.Clone(x.Shape)
	low[2], wide[2], padded[2] = 2*a.rank, 2*a.hidden, 3*a.hidden
	z := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: low, Params: true, Keep: []tape.Tensor{x}})
	z = t.Op(tape.Op{In: []tape.Tensor{z}, Shape: wide, Params: true, Keep: []tape.Tensor{z}})
	z = t.Op(tape.Op{In: []tape.Tensor{z}, Shape: padded, Keep: []tape.Tensor{z}})
	return t.Op(tape.Op{In: []tape.Tensor{z}, Shape: padded})
}

// attention is CausalSelfAttention: queries and keys are rotated and joined in new memory, values
// stay a part of what the projection returned.
func (m litGPT) attention() tape.Module {
	return tape.Module{
		Name: "CausalSelfAttention",
		Parts: tape.Sequential{
			tape.As("attn", m.linear(m.hidden, 3*m.hidden)), tape.As("lora", adapters{m.hidden, 8}),
			tape.As("proj", m.linear(m.hidden, m.hidden)),
		},
		Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			qkv := f.Add(f.Call("attn", x), f.Call("lora", x))
			part := f.Part(qkv, 2, m.hidden)
			turned := func() tape.Tensor { return f.Copy(f.Add(f.Scale(part), f.Scale(f.Copy(part)))) }
			q, k := turned(), turned()
			return f.Call("proj", layer.ScaledDotProduct(f.Tape, q, k, part, m.heads, m.hidden/m.heads))
		},
	}
}

func (m litGPT) mlp() tape.Layer {
	if m.parallel {
		return tape.Sequential{tape.As("fc", m.linear(m.hidden, m.ffn)), layer.GELU{}, tape.As("proj", m.linear(m.ffn, m.hidden))}
	}
	return tape.Module{
		Name: "LLaMAMLP",
		Parts: tape.Sequential{
			tape.As("fc_1", m.linear(m.hidden, m.ffn)), tape.As("fc_2", m.linear(m.hidden, m.ffn)), tape.As("proj", m.linear(m.ffn, m.hidden)),
		},
		Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			gate, up := f.Call("fc_1", x), f.Call("fc_2", x)
			return f.Call("proj", f.Mul(f.Apply(layer.SiLU{}, gate), up))
		},
	}
}

func (m litGPT) block() tape.Module {
	parts := tape.Sequential{tape.As("norm_1", m.norm()), tape.As("attn", m.attention()), tape.As("mlp", m.mlp())}
	if !m.parallel || m.twoNorms {
		parts = append(parts, tape.As("norm_2", m.norm()))
	}
	return tape.Module{Name: "Block", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		n := f.Call("norm_1", x)
		h := f.Call("attn", n)
		switch {
		case m.twoNorms:
			n = f.Call("norm_2", x)
			fallthrough
		case m.parallel:
			return f.Add(f.Add(f.Call("mlp", n), h), x)
		}
		x = f.Add(h, x)
		return f.Add(f.Call("mlp", f.Call("norm_2", x)), x)
	}}
}

func (m litGPT) layers() []tape.Layer {
	layers := []tape.Layer{tape.As("wte", layer.Embedding{Num: m.vocab, Dim: m.hidden})}
	for i := range m.blocks {
		layers = append(layers, tape.As(fmt.Sprintf("h.%d", i), m.block()))
	}
	return append(layers, tape.As("ln_f", m.norm()))
}

// trained are the layers with a loss of 128 tokens at a time, whose logits Fabric makes float32.
func (m litGPT) trained(tokens int) []tape.Layer {
	head := layer.Linear{In: m.hidden, Out: m.vocab, NoBias: true}
	return append(m.layers(), tape.As("lm_head", fabricLoss{head, (tokens + 127) / 128}))
}

// fabricLoss is a head whose logits come in chunks (lit_gpt/utils.py, chunked_cross_entropy). Lightning's Fabric makes what a
// model returns float32, so that all chunks are, before the first loss.
type fabricLoss struct {
	layer.Linear
	chunks int
}

func (l fabricLoss) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	f := &tape.Flow{Tape: t}
	length := x.Dim(1)
	each := (length-1)/l.chunks + 1
	var logits []tape.Tensor
	for begin := 0; begin < length; begin += each {
		part := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Dim(0), min(each, length-begin), l.In}, View: true})
		chunk := f.Apply(l.Linear, part)
		if t.Learns() { // each makes a gradient of the weight, which is added to the others'
			t.Ops[len(t.Ops)-1].Backward += int64(2 * t.Whole(alloc.Shape{l.Out, l.In}, t.Computes()))
		}
		chunk = f.Op(tape.Op{In: []tape.Tensor{chunk}, Shape: chunk.Shape, DType: alloc.Float32})
		t.Answer = append(t.Answer, t.Home(chunk.Storage()))
		logits = append(logits, chunk)
	}
	var sum tape.Tensor
	for i, chunk := range logits {
		loss := f.Apply(layer.CrossEntropy{}, chunk)
		if i > 0 {
			loss = f.Op(tape.Op{In: []tape.Tensor{sum, loss}, Shape: loss.Shape, PassGrad: true})
		}
		sum = loss
	}
	f.Hold(logits...)
	return sum
}

// loraRow is one of the table's runs with LoRA.
func (m litGPT) loraRow(name string, batch, tokens int, how string, more ...estimate.Option) owned {
	frozen := []string{"wte", "h.*.norm_1", "h.*.norm_2", "h.*.attn.attn", "h.*.attn.proj", "h.*.mlp", "ln_f", "lm_head"}
	if m.parallel && !m.twoNorms {
		frozen = append(frozen[:2:2], frozen[3:]...)
	}
	return owned{
		model: fmt.Sprintf("%s, %d tokens", name, tokens), setting: fmt.Sprintf("batch %d, LoRA of rank 8 on %s, lit-gpt's layers", batch, how),
		layers: m.trained(tokens),
		opts: append(opts(estimate.Tokens(batch, tokens), estimate.Precision(alloc.BFloat16), estimate.Train("adamw"), estimate.Frozen(frozen...), estimate.Installed("torch==2.1"),
			estimate.Loop{ZeroGrad: "first", Output: "in-pass", Form: "foreach", MicroBatches: 128 / batch}, lazyAmpere), more...),
	}
}

// quantized are the bases of bitsandbytes 0.41, which restores float16; lit-gpt has the head among them.
func (m litGPT) quantized(b string) estimate.Option {
	layers := []string{"lm_head", "h.*.attn.attn", "h.*.attn.proj", "h.*.mlp.*"}
	return together(estimate.Quantized{Base: b, Layers: layers}, estimate.Installed("bitsandbytes==0.41.0"))
}

func litgptRows() []owned {
	var rows []owned
	for _, r := range []struct {
		model        litGPT
		name         string
		tokens, most int // of a batch
	}{{litPhi, "phi-1.5", 1044, 4}, {litStableLM, "StableLM Alpha 3B", 1034, 4}, {litLlama7b, "Llama 2 7B", 1304, 2}, {litLlama13b, "Llama 2 13B", 1304, 1}} {
		for batch := 1; batch <= r.most; batch *= 2 {
			rows = append(rows, r.model.loraRow(r.name, batch, r.tokens, "bfloat16"))
		}
		rows = append(rows, r.model.loraRow(r.name, 1, r.tokens, "NF4", r.model.quantized("nf4")),
			r.model.loraRow(r.name, 1, r.tokens, "NF4 twice quantized", r.model.quantized("nf4-double")))
	}
	return append(rows, litgptServed()...)
}

// litgptServed are the runs of generate/base.py: 6 tokens and 50 more. Transformers' layers stand for lit-gpt's.
func litgptServed() []owned {
	stableLM := family.Transformer{Family: family.GPTNeoX, Vocab: 50688, Hidden: 4096, FFN: 16384, Blocks: 16, Heads: 32, Attention: family.Attention{RotaryDim: 32}, Parallel: true}
	codeLlama34b := family.Transformer{Vocab: 32000, Hidden: 8192, FFN: 22016, Blocks: 48, Heads: 64, KVHeads: 8}
	llama70b := family.Transformer{Vocab: 32000, Hidden: 8192, FFN: 28672, Blocks: 80, Heads: 64, KVHeads: 8}
	falcon40b := family.Transformer{Family: family.Falcon, Vocab: 65024, Hidden: 8192, FFN: 32768, Blocks: 60, Heads: 128, KVHeads: 8, Parallel: true, Own: &family.FalconParts{TwoNorms: true}}
	how := map[string]string{"": "bfloat16", "nf4": "NF4", "nf4-double": "NF4 twice quantized"}
	both := []string{"nf4", "nf4-double"}
	var rows []owned
	for _, r := range []struct {
		model family.Transformer
		name  string
		bases []string
	}{
		{phi15, "phi-1.5", both}, {stableLM, "StableLM Alpha 3B", append(both, "")}, {llama7b, "Llama 2 7B", both}, {llama13b, "Llama 2 13B", both},
		{codeLlama34b, "CodeLlama 34B", both}, {falcon40b, "Falcon 40B", both}, {llama70b, "Llama 2 70B", both[1:]},
	} {
		for _, base := range r.bases {
			rows = append(rows, owned{
				model: r.name, setting: how[base] + ", 6 tokens and 50 more", layers: r.model.Layers(),
				opts: opts(estimate.Tokens(1, 6), estimate.Precision(alloc.BFloat16), estimate.KVConfig(r.model.Cache(1, 56, alloc.BFloat16)), estimate.Installed("torch==2.1"), lazyAmpere,
					estimate.Quantized{Base: base, Layers: []string{"*"}}, estimate.Installed("bitsandbytes==0.41.0")),
			})
		}
	}
	return rows
}

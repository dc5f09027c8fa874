package family

import (
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Zamba2 is Mamba 2 with a few transformer blocks that some layers share. Such a block reads the layer's input beside
// the embeddings, has low-rank paths for each layer that uses it, and its output is added to what the layer's mixer
// reads (modeling_zamba2.py).
var Zamba2 = &Family{
	Name:   "Zamba 2",
	Layers: zamba2Layers,
	keeps: func(c Transformer, block int) []setting.CacheSpec {
		own := zamba2Of(c)
		if slices.Contains(own.hybrids, block) {
			return []setting.CacheSpec{c.wholeSpec(), own.Keeps()}
		}
		return []setting.CacheSpec{own.Keeps()}
	},
	Types: []Type{{Name: "zamba2", Base: "Zamba2Model", Read: readZamba2}},
}

// zamba2Parts is what only Zamba 2 has.
type zamba2Parts struct {
	layer.HeadSpace
	hybrids []int // layers that use a shared block
	shared  int   // number of these blocks, used in turn
	rank    int   // of the low-rank paths
	adapted bool  // queries, keys and values have such paths too
	rotated bool
}

func zamba2Of(c Transformer) zamba2Parts {
	return *setting.Or(Own[zamba2Parts](c), &zamba2Parts{})
}

// zamba2Use is the number of the layer that uses a shared block now, among those that use one.
var zamba2Use tape.Slot[int]

func zamba2Layers(c Transformer) []tape.Layer {
	own := zamba2Of(c)
	mixer := tape.Sequential{rmsNorm(c.Hidden, "input_layernorm"), tape.As("mamba", layer.HeadMixer{Hidden: c.Hidden, HeadSpace: own.HeadSpace})}
	shared := make([]tape.Layer, min(own.shared, len(own.hybrids)))
	for i := range shared {
		shared[i] = tape.Share(zamba2Shared(c, own, i))
	}
	blocks := Stacked(c.Blocks, func(block int) int { return slices.Index(own.hybrids, block) }, func(use, _ int) tape.Layer {
		if use < 0 {
			return DecoderBlock{tape.Sequential{tape.Skip(mixer...)}}
		}
		return zamba2Hybrid(c, mixer, shared[use%len(shared)], use)
	})
	parts := tape.Sequential{tape.As("embed_tokens", layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true})}
	if own.rotated {
		parts = append(parts, tape.As("rotary_emb", Frequencies{N: c.HeadWidth() / 2, Kinds: 1}))
	}
	parts = append(parts, tape.As("layers", blocks), rmsNorm(c.Hidden, "final_layernorm"))
	layers := []tape.Layer{tape.As("model", tape.Module{Name: "Sequential", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		x = f.Call("embed_tokens", x)
		return f.Call("final_layernorm", f.Call("layers", x, f.Copy(x)))
	}})}
	switch {
	case c.Classes != 0:
		return append(layers, tape.As("score", layer.Linear{In: c.Hidden, Out: c.Classes, NoBias: true}))
	case c.NoHead:
		return layers
	}
	head := layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: layer.ByColumns}
	if c.Tied {
		head.Tied = ".model.embed_tokens.weight"
	}
	return append(layers, layer.Headed(tape.As("lm_head", head), false)...)
}

func rmsNorm(size int, name string) tape.Named {
	return tape.As(name, layer.RMSNorm{Size: size, Unfused: true})
}

// zamba2Hybrid returns a layer whose mixer also reads the output of a shared block.
func zamba2Hybrid(c Transformer, mixer tape.Sequential, shared tape.Layer, use int) tape.Layer {
	decoder := tape.Module{Name: "MambaBlock", Parts: mixer, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		return f.Add(x, f.Call("mamba", f.Call("input_layernorm", f.Add(x, f.Beside(0)))))
	}}
	parts := tape.Sequential{
		tape.As("linear", layer.Linear{In: c.Hidden, Out: c.Hidden, NoBias: true}), tape.As("mamba_decoder", decoder), tape.As("shared_transformer", shared),
	}
	return tape.Module{Name: "DecoderBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		*zamba2Use.Of(f.Tape) = use
		return f.Call("mamba_decoder", x, f.Call("linear", f.Call("shared_transformer", x)))
	}}
}

// zamba2Shared returns a block that every shared-th layer of those that use one uses, from number first on.
func zamba2Shared(c Transformer, own zamba2Parts, first int) tape.Layer {
	both := 2 * min(c.Hidden, setting.MaxField/2)
	low := func(name string, in, out int) (paths tape.Sequential) {
		for i := first; i < len(own.hybrids); i += own.shared {
			paths = append(paths, tape.As(name+strconv.Itoa(i), tape.Sequential{
				layer.Linear{In: in, Out: own.rank, NoBias: true}, layer.Linear{In: own.rank, Out: out, NoBias: true},
			}))
		}
		return paths
	}
	attention := layer.Attention{
		Hidden: both, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadWidth(), NoBias: true, Rotary: own.rotated, Plain: c.Plain, Returns: true, Elementary: true,
		Names: &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj"},
	}
	attending := tape.Sequential{tape.As("o_proj", layer.Linear{In: setting.Product(c.Heads, c.HeadWidth()), Out: c.Hidden, NoBias: true})}
	if own.adapted {
		for _, name := range []string{"q", "k", "v"} {
			attending = append(attending, low("linear_"+name+"_adapter_list.", both, both)...)
		}
	}
	mlp := append(tape.Sequential{
		tape.As("gate_up_proj", layer.Linear{In: c.Hidden, Out: 2 * min(c.FFN, setting.MaxField/2), NoBias: !c.Bias}), tape.As("act_fn", c.Activation.Layer(layer.UseGELU)),
		tape.As("down_proj", layer.Linear{In: c.FFN, Out: c.Hidden, NoBias: !c.Bias}),
	}, low("gate_up_proj_adapter_list.", c.Hidden, 2*min(c.FFN, setting.MaxField/2))...)
	parts := tape.Sequential{
		tape.As("self_attn", tape.Module{Name: "Attention", Parts: append(attending, tape.Inline(attention)), Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			of := attention
			if own.adapted {
				of.Beside = func(projection string, x tape.Tensor) tape.Tensor {
					return f.Call("linear_"+projection[:1]+"_adapter_list."+strconv.Itoa(*zamba2Use.Of(f.Tape)), x)
				}
			}
			return f.Call("o_proj", of.Forward(f.Tape, x))
		}}),
		tape.As("feed_forward", tape.Module{Name: "GatedMLP", Parts: mlp, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			both := f.Add(f.Call("gate_up_proj", x), f.Call("gate_up_proj_adapter_list."+strconv.Itoa(*zamba2Use.Of(f.Tape)), x))
			halves := f.Tape.Parts(both, c.FFN, c.FFN)
			return f.Call("down_proj", f.Mul(f.Call("act_fn", halves[0]), halves[1]))
		}}),
		rmsNorm(both, "input_layernorm"), rmsNorm(c.Hidden, "pre_ff_layernorm"),
	}
	return tape.Module{Name: "SharedBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		x = f.Call("self_attn", f.Call("input_layernorm", f.Cat(2, x, f.Beside(0))))
		return f.Call("feed_forward", f.Call("pre_ff_layernorm", x))
	}}
}

func readZamba2(c *Config, a *Model) {
	c.Usual("intermediate_size", 4*min(max(c.Whole("hidden_size", 0), 0), LargestNumber/4))
	c.decoder(a, 0, true)
	if a.HeadSize == 0 {
		a.HeadSize = max(1, 2*min(a.Hidden, LargestNumber/2)/a.Heads)
	}
	a.Bias = c.Flag("add_bias_linear", false)
	c.Activation(a, c.Word("hidden_act"), "gelu")
	own := &zamba2Parts{HeadSpace: layer.HeadSpace{Bias: a.Bias, OutBias: a.Bias}, adapted: c.Flag("use_shared_attention_adapter", false), rotated: c.Flag("use_mem_rope", false)}
	a.Own = own
	c.stateType(a)
	c.Times(&own.Inner, "mamba_expand", a.Hidden, c.Ratio("mamba_expand", 2))
	c.Number(&own.Heads, "n_mamba_heads", 8)
	c.Number(&own.State, "mamba_d_state", 64)
	c.Number(&own.Groups, "mamba_ngroups", 1)
	c.Number(&own.Kernel, "mamba_d_conv", 4)
	c.Number(&own.Chunk, "chunk_size", 256)
	c.Number(&own.shared, "num_mem_blocks", 1)
	c.Number(&own.rank, "adapter_rank", 128)
	// The number of each shared block's layer is counted; the other keys are of other programs or of generation.
	c.Harmless("hybrid_layer_ids", "kv_channels", "num_query_groups", "mamba_headdim", "use_long_context", "use_conv_bias", "use_mamba_kernels", "use_mem_eff_path", "num_logits_to_keep")
	types := c.Names("layers_block_type")
	if len(types) != a.Blocks {
		c.Fail("layers_block_type", "it has %d entries for %d layers", len(types), a.Blocks)
	}
	for i, word := range types {
		switch word {
		case "hybrid":
			own.hybrids = append(own.hybrids, i)
		case "mamba", "linear_attention":
		default:
			c.Unknown("layers_block_type", word)
		}
	}
}

package checkpoint

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

func hfGPTOSS(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "GptOssForCausalLM", 8, false); err != nil {
		return err
	}
	if !orBool(c.AttentionBias, true) {
		return c.unknown("attention_bias", "false")
	}
	a.Family = family.GPTOSS
	if c.Window == nil {
		c.Window = new(whole(128))
	}
	if err := c.windows(a, func(layer int) bool { return layer%2 == 1 }); err != nil {
		return err
	}
	return c.numbers(
		hfNumber{&a.HeadSize, "head_dim", c.HeadSize, 64},
		hfNumber{&a.Experts, "num_local_experts", c.Experts, 128},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 4},
	)
}

func hfDeepSeekV3(c *hfConfig, a *architecture) error {
	a.Router = layer.SigmoidRouter
	if err := c.groups(a); err != nil {
		return err
	}
	return c.deepSeek(a, "DeepseekV3ForCausalLM", 3)
}

func hfDeepSeekV2(c *hfConfig, a *architecture) error {
	a.Router, a.UnscaledTopK = layer.WideRouter, true
	if err := c.deepSeek(a, "DeepseekV2ForCausalLM", 0); err != nil {
		return err
	}
	a.Latent.Complex = true
	return nil
}

// deepSeek reads what the versions have in common; dense is the number of dense layers
// where the key is absent.
func (c *hfConfig) deepSeek(a *architecture, causal string, dense int) error {
	if err := c.decoder(a, causal, 0, false); err != nil {
		return err
	}
	if err := c.noBias(); err != nil {
		return err
	}
	if c.SparseEvery != nil && *c.SparseEvery != 1 {
		return c.unknown("moe_layer_freq", fmt.Sprint(*c.SparseEvery))
	}
	var latent layer.LatentAttention
	shared := 0
	err := c.numbers(
		hfNumber{&a.Experts, "n_routed_experts", c.RoutedExperts, 256},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 8},
		hfNumber{&a.ExpertFFN, "moe_intermediate_size", c.ExpertFFN, 2048},
		hfNumber{&shared, "n_shared_experts", c.SharedExperts, 1},
		hfNumber{&latent.KVRank, "kv_lora_rank", c.KVRank, 512},
		hfNumber{&latent.RopeSize, "qk_rope_head_dim", c.RopeSize, 64},
		hfNumber{&latent.NopeSize, "qk_nope_head_dim", c.NopeSize, 128},
		hfNumber{&latent.ValueSize, "v_head_dim", c.ValueSize, 128},
	)
	if err != nil {
		return err
	}
	if shared > maxBlocks {
		return &Error{File: c.file, Where: "n_shared_experts", Reason: fmt.Sprintf("%d are more than %d", shared, maxBlocks)}
	}
	if c.QueryRank != nil { // null where queries are projected at once
		if err := c.numbers(hfNumber{&latent.QueryRank, "q_lora_rank", c.QueryRank, 0}); err != nil {
			return err
		}
	}
	a.DenseBlocks = dense
	if c.DenseFirst != nil {
		a.DenseBlocks = max(0, min(int(*c.DenseFirst), a.Blocks))
	}
	a.KVHeads, a.SharedFFN, a.Latent = 0, shared*a.ExpertFFN, &latent
	return c.activation(a, c.HiddenAct, "silu")
}

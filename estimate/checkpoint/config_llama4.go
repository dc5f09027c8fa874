package checkpoint

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

func hfLlama4(c *hfConfig, a *architecture) error {
	return imageText{
		heads: []string{"Llama4ForConditionalGeneration"}, text: "llama4_text", vision: "llama4_vision_model", family: family.Llama4Vision,
		tower: func(v, _ *hfConfig, t *family.Transformer) error {
			if err := v.tower(t); err != nil {
				return err
			}
			return v.numbers(
				hfNumber{&t.EmbedDim, "projector_output_dim", v.ProjectorOut, 4096},
				hfNumber{&t.Classes, "vision_output_dim", v.VisionOut, 7680},
			)
		},
	}.read(c, a)
}

// hfLlama4Text reads the text of Llama 4: its experts have intermediate_size, its dense layers
// intermediate_size_mlp; attention goes by chunks, which a cache holds like a window.
func hfLlama4Text(c *hfConfig, a *architecture) error {
	if err := c.noBias(); err != nil {
		return err
	}
	if err := c.of(a, family.Llama4, "Llama4ForCausalLM"); err != nil {
		return err
	}
	a.ExpertFFN, a.SharedFFN = a.FFN, a.FFN
	if orBool(c.UseQKNorm, true) {
		a.QKNorm = layer.NormHeads
	}
	err := c.numbers(
		hfNumber{&a.FFN, "intermediate_size_mlp", c.DenseFFN, 16384},
		hfNumber{&a.Experts, "num_local_experts", c.Experts, 16},
		hfNumber{&a.TopK, "num_experts_per_tok", c.ExpertsPerToken, 1},
	)
	if err != nil {
		return err
	}
	every := max(1, int(*orNumber(c.RotateEvery, 4)))
	if err := c.unrotated(a, func(layer int) bool { return (layer+1)%every == 0 }); err != nil {
		return err
	}
	step := max(1, int(*orNumber(c.SparseEach, 1)))
	for i := range a.Kinds {
		if c.SparseLayers == nil && (i+1)%step == 0 || slices.Contains(c.SparseLayers, i) {
			a.Kinds[i] |= family.Sparse
		}
		if a.Kinds[i]&family.NoRotation == 0 && c.ChunkSize != nil {
			a.Kinds[i] |= family.Windowed
		}
	}
	if c.ChunkSize != nil {
		return c.numbers(hfNumber{&a.Window, "attention_chunk_size", c.ChunkSize, 8192})
	}
	return nil
}

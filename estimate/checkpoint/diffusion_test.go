package checkpoint

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/diffusion"
)

// measuredDenoiser is a model that makes images, as testdata/torch/diffusion.py measured it. Of a known one there
// are the parameters alone.
type measuredDenoiser struct {
	measuredFamily
	Text      int // tokens
	Known     bool
	Shapes    [][]int                // of what a model of videos reads, or one whose config has no size
	Inference map[string]alloc.Bytes // the peak of a forward pass without gradients, by element type, beyond what was there before it
}

// inputs are those that diffusion.py gives the model: of FLUX 64 places. An autoencoder is not trained, and has no Peak.
func (m measuredDenoiser) inputs(a architecture) estimate.Option {
	if own := family.Own[diffusion.Denoiser](a.Transformer); own != nil && a.Image == 0 {
		return together(estimate.InputShape(2, 64, a.Channels), estimate.InputShape(2, m.Text, own.TextDim))
	}
	return family.Given(a.Inputs(2, m.Text))
}

// Models that make images have as many parameters as diffusers makes of their config.json, keep what PyTorch was
// measured to keep on the CPU, and their peaks lie within the printed bounds.
func TestDenoisersAsPyTorchHasThem(t *testing.T) {
	for name, m := range measuredConfigs(t) {
		t.Run(name, func(t *testing.T) {
			c, err := ReadFile(writeFile(t, configName, m.Config))
			require.NoError(t, err)
			if m.Known {
				input, err := c.Input(1, 0)
				require.NoError(t, err)
				r, err := c.Report(input)
				require.NoError(t, err)
				assert.Equal(t, m.Params, r.Params.Count)
				return
			}
			if len(m.Shapes) > 0 {
				m.checkInference(t, c)
				return
			}
			if m.Inference != nil {
				m.checkInference(t, c)
			}
			require.NotEmpty(t, m.Kept)
			for dtype, kept := range m.Kept {
				d, err := alloc.ParseDType(dtype)
				require.NoError(t, err)
				r, err := c.Report(m.inputs(c.architecture), estimate.OnCPU(), estimate.Train("adam"), estimate.Precision(d))
				require.NoError(t, err)
				assert.Equal(t, m.Params, r.Params.Count)
				if m.Peak != nil {
					checkPeak(t, m.Peak[dtype], dtype, r)
				}
				if !assert.InEpsilon(t, float64(kept), float64(r.Retained), 0.003, "%s: measured %d, estimated %d", dtype, kept, r.Retained) {
					for _, row := range r.Layers {
						t.Logf("%-60s %8d %8d %v", row.Path, row.Params, row.Retained, row.Output)
					}
				}
			}
		})
	}
}

// checkInference checks the peak of a forward pass without gradients: within 2 % of the measured one, and in the bounds that
// the report prints. Scratch memory of a few kilobytes is not counted.
func (m measuredDenoiser) checkInference(t *testing.T, c *File) {
	t.Helper()
	var inputs []estimate.Option
	for _, shape := range m.Shapes {
		inputs = append(inputs, estimate.InputShape(shape...))
	}
	if inputs == nil {
		inputs = append(inputs, m.inputs(c.architecture))
	}
	require.NotEmpty(t, m.Inference)
	for dtype, measured := range m.Inference {
		d, err := alloc.ParseDType(dtype)
		require.NoError(t, err)
		r, err := c.Report(append(inputs, estimate.OnCPU(), estimate.Precision(d))...)
		require.NoError(t, err)
		assert.Equal(t, m.Params, r.Params.Count)
		at := r.Inference
		before := at.Weights + at.Buffers + at.Input
		assert.InEpsilon(t, float64(measured), float64(at.Peak.Bytes-before), 0.02, "%s: measured %d, estimated %d", dtype, measured, at.Peak.Bytes-before)
		assert.LessOrEqual(t, before+measured, at.Peak.Upper, "%s: the upper bound of %v", dtype, at.Peak.Bytes)
		assert.GreaterOrEqual(t, before+measured, at.Peak.Lower, "%s: the lower bound of %v", dtype, at.Peak.Bytes)
	}
}

// Settings that make another model than those known are refused by their key, and sizes that do not go together.
func TestDenoisersThatAreNotKnown(t *testing.T) {
	unet := `"_class_name": "UNet2DConditionModel", "block_out_channels": [32, 64], "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"]`
	vae := `"_class_name": "AutoencoderKL", "block_out_channels": [32], "down_block_types": ["DownEncoderBlock2D"], "up_block_types": ["UpDecoderBlock2D"]`
	for text, key := range map[string]string{
		`"_class_name": "MochiTransformer3DModel"`:                                                                                          `_class_name: "MochiTransformer3DModel"`,
		`"_class_name": "Flux2Transformer2DModel", "timestep_guidance_channels": 128`:                                                       "timestep_guidance_channels",
		`"_class_name": "FluxTransformer2DModel", "num_single_layers": 5000`:                                                                "num_single_layers",
		`"_class_name": "FluxTransformer2DModel", "num_layers": -1`:                                                                         "num_layers",
		`"_class_name": "PixArtTransformer2DModel"`:                                                                                         "caption_channels",
		`"_class_name": "PixArtTransformer2DModel", "caption_channels": 8, "norm_type": "ada_norm"`:                                         "norm_type",
		`"_class_name": "PixArtTransformer2DModel", "caption_channels": 8, "sample_size": 33`:                                               "sample_size",
		`"_class_name": "PixArtTransformer2DModel", "caption_channels": 8, "cross_attention_dim": 8`:                                        "cross_attention_dim",
		`"_class_name": "PixArtTransformer2DModel", "caption_channels": 8, "activation_fn": "geglu"`:                                        "activation_fn",
		`"_class_name": "SD3Transformer2DModel", "qk_norm": "layer_norm"`:                                                                   "qk_norm",
		`"_class_name": "SD3Transformer2DModel", "dual_attention_layers": [1]`:                                                              "dual_attention_layers",
		`"_class_name": "SD3Transformer2DModel", "caption_projection_dim": 8`:                                                               "caption_projection_dim",
		`"_class_name": "SD3Transformer2DModel", "sample_size": 1024`:                                                                       "sample_size",
		unet + `, "class_embed_type": "timestep"`:                                                                                           "class_embed_type",
		unet + `, "num_class_embeds": 10`:                                                                                                   "num_class_embeds",
		unet + `, "mid_block_type": "UNetMidBlock2D"`:                                                                                       "mid_block_type",
		unet + `, "attention_head_dim": [1, 2, 3]`:                                                                                          "attention_head_dim",
		unet + `, "transformer_layers_per_block": 5000`:                                                                                     "transformer_layers_per_block",
		unet + `, "addition_embed_type": "text_time"`:                                                                                       "projection_class_embeddings_input_dim",
		unet + `, "act_fn": "mish"`:                                                                                                         "act_fn",
		unet + `, "layers_per_block": 5000`:                                                                                                 "layers_per_block",
		`"_class_name": "UNet2DConditionModel", "block_out_channels": []`:                                                                   "block_out_channels",
		vae + `, "use_quant_conv": false`:                                                                                                   "use_quant_conv",
		vae + `, "out_channels": 4`:                                                                                                         "out_channels",
		`"_class_name": "AutoencoderKL", "block_out_channels": [32], "down_block_types": ["Other"], "up_block_types": ["UpDecoderBlock2D"]`: "down_block_types",
	} {
		_, err := ReadFile(writeFile(t, configName, []byte("{"+text+"}")))
		require.ErrorIs(t, err, fs.ErrInvalid, text)
		assert.Contains(t, err.Error(), key)
	}
}

package checkpoint_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
)

// smallPipeline is a pipeline whose peak is the decoding: an autoencoder with tiles of eight latents a side.
const smallPipeline = `{"_class_name": "DiffusionPipeline", "torch_dtype": "float32", %s"parts": {
	"unet": {"_class_name": "UNet2DConditionModel", "sample_size": %d, "in_channels": 4, "out_channels": 4, "block_out_channels": [8], "layers_per_block": 1,
		"down_block_types": ["DownBlock2D"], "up_block_types": ["UpBlock2D"], "mid_block_type": "UNetMidBlock2DCrossAttn", "cross_attention_dim": 8, "attention_head_dim": 4, "norm_num_groups": 4},
	"vae": {"_class_name": "AutoencoderKL", "block_out_channels": [32, 64, 64, 64], "latent_channels": 4, "sample_size": 64, "norm_num_groups": 32,
		"down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"],
		"up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"]}}}`

func decodingPeak(t *testing.T, side int, upcast string, opts ...estimate.Option) *estimate.Report {
	t.Helper()
	f, err := checkpoint.ParseConfig("pipeline", fmt.Appendf(nil, smallPipeline, upcast, side))
	require.NoError(t, err)
	layers, err := f.Layers()
	require.NoError(t, err)
	input, err := f.Input(3, 4)
	require.NoError(t, err)
	r, err := estimate.Model(layers, append([]estimate.Option{input}, opts...)...)
	require.NoError(t, err)
	return r
}

// The peaks of AutoencoderKL.decode of diffusers 0.42.1 with torch 2.15 on the CPU, of three latent images in float32, with
// enable_slicing and enable_tiling.
func TestDecodingInSlicesAndTiles(t *testing.T) {
	for _, row := range []struct {
		sliced, tiled bool
		side          int
		peak          alloc.Bytes
	}{
		{false, false, 8, 9443340}, {false, false, 20, 59020812}, {false, false, 24, 84989964},
		{false, true, 8, 9443340}, {false, true, 20, 10712844}, {false, true, 24, 10868748},
		{true, false, 8, 3919872}, {true, false, 20, 23725056}, {true, false, 24, 34099200},
		{true, true, 8, 3919872}, {true, true, 20, 4869888}, {true, true, 24, 5197824},
	} {
		r := decodingPeak(t, row.side, "", estimate.OnCPU(), estimate.Decoding{Sliced: row.sliced, Tiled: row.tiled})
		m := r.Inference
		got := m.Saved + m.Transient + m.Input
		if row.sliced { // convolutions of a single image have scratch buffers on the CPU, some 15 % here
			assert.InEpsilon(t, int64(row.peak), int64(got), 0.18, "%+v", row)
			continue
		}
		assert.InEpsilon(t, int64(row.peak), int64(got), 0.005, "%+v", row)
	}
}

// A slice takes what one image does, and the others' images beside it; 3,819,520 and 3,919,872 bytes were measured.
func TestSlicesTakeTheOthersImages(t *testing.T) {
	three := decodingPeak(t, 8, "", estimate.OnCPU(), estimate.Decoding{Sliced: true}).Inference
	f, err := checkpoint.ParseConfig("pipeline", fmt.Appendf(nil, smallPipeline, "", 8))
	require.NoError(t, err)
	layers, err := f.Layers()
	require.NoError(t, err)
	input, err := f.Input(1, 4)
	require.NoError(t, err)
	one, err := estimate.Model(layers, input, estimate.OnCPU())
	require.NoError(t, err)
	assert.InDelta(t, 3919872-3819520, int64(three.Saved+three.Transient-one.Inference.Saved-one.Inference.Transient), 8192)
}

// SDXL's pipeline converts an autoencoder of float16 to float32 (force_upcast of its config), not one of bfloat16.
func TestUpcastOfTheAutoencoder(t *testing.T) {
	transient := func(upcast string, d alloc.DType) alloc.Bytes {
		return decodingPeak(t, 24, upcast, estimate.Precision(d)).Inference.Transient
	}
	const upcast = `"upcast_vae": true, `
	half, wide := transient("", alloc.Float16), transient("", alloc.Float32)
	assert.InDelta(t, int64(wide+2*1250759), int64(transient(upcast, alloc.Float16)), float64(wide)/1000, "activations in float32, and what its weights take more")
	assert.Less(t, half, wide)
	assert.Equal(t, transient("", alloc.BFloat16), transient(upcast, alloc.BFloat16))
	assert.Equal(t, wide, transient(upcast, alloc.Float32))
}

// Reference images are positions beside those of the image that is made.
func TestReferenceImages(t *testing.T) {
	const config = `{"_class_name": "QwenImageTransformer2DModel", "num_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32, "axes_dims_rope": [4, 6, 6]}`
	f, err := checkpoint.ParseConfig("denoiser", []byte(config))
	require.NoError(t, err)
	saved := func(f *checkpoint.File) (alloc.Shape, alloc.Bytes) {
		layers, err := f.Layers()
		require.NoError(t, err)
		input, err := f.Input(1, 8)
		require.NoError(t, err)
		r, err := estimate.Model(layers, input, estimate.OnCPU(), estimate.Train("sgd"))
		require.NoError(t, err)
		return r.Inputs[0], r.Retained
	}
	one, alone := saved(f)
	two, err := f.References(2)
	require.NoError(t, err)
	shape, referring := saved(two)
	assert.Equal(t, one[1]+2*4096, shape[1])
	assert.InEpsilon(t, float64(shape[1])/float64(one[1]), float64(referring)/float64(alone), 0.05)

	_, err = f.References(-1)
	require.ErrorContains(t, err, "want 0 to 64 images")
	vae, err := checkpoint.ParseConfig("vae", []byte(`{"_class_name": "AutoencoderKL"}`))
	require.NoError(t, err)
	_, err = vae.References(1)
	require.ErrorContains(t, err, "makes images of no others")
}

// Before PyTorch 2.0 attention held its scores: diffusers and transformers had no other way.
func TestAttentionBeforePyTorch2(t *testing.T) {
	f, err := checkpoint.ParseConfig("vit", []byte(`{"model_type": "vit", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}`))
	require.NoError(t, err)
	layers, err := f.Layers()
	require.NoError(t, err)
	input, err := f.Input(4, 0)
	require.NoError(t, err)
	retained := func(opts ...estimate.Option) alloc.Bytes {
		r, err := estimate.Model(layers, append(opts, input, estimate.Train("sgd"))...)
		require.NoError(t, err)
		return r.Retained
	}
	eager, sdpa := retained(estimate.Attends("eager")), retained()
	assert.Greater(t, eager, sdpa)
	assert.Equal(t, eager, retained(estimate.Installed("torch==1.13")))
	assert.Equal(t, sdpa, retained(estimate.Installed("torch==1.13"), estimate.Attends("sdpa")))
	assert.Equal(t, sdpa, retained(estimate.Installed("torch==2.0")))
}

package checkpoint

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A model reads or makes images of the size that is asked for, and its parameters stay.
func TestImages(t *testing.T) {
	models := measuredConfigs(t)
	decoded := pipelineFolder(t, fluxPipeline(t))
	for path, read := range map[string][]int{
		decoded: {1, 32 * 32, 16}, // of the model that runs
		pipelineFolder(t, map[string]string{"config.json": string(models["flux"].Config)}):        {1, 32 * 32, 16},
		pipelineFolder(t, map[string]string{"config.json": string(models["unet"].Config)}):        {1, 4, 64, 64},
		pipelineFolder(t, map[string]string{"config.json": string(models["autoencoder"].Config)}): {1, 4, 128, 128}, // of three blocks
		pipelineFolder(t, map[string]string{"config.json": `{"model_type": "resnet"}`}):           {1, 3, 512, 512},
	} {
		usual, err := ReadFile(path)
		require.NoError(t, err)
		c, err := usual.Images(512)
		require.NoError(t, err)
		input, err := c.Input(1, 0)
		require.NoError(t, err)
		r, err := c.Report(input)
		require.NoError(t, err)
		assert.Equal(t, read, []int(r.Inputs[0]))
		plain, err := usual.Report()
		require.NoError(t, err)
		assert.Equal(t, plain.Params, r.Params)
		for _, row := range r.Layers {
			if row.Path == "vae.decoder.conv_in" {
				assert.Equal(t, []int{64, 64}, []int(row.Input[2:]), "the latent image has the size too")
			}
		}
	}
}

func TestImagesOfAnotherSizeAreRefused(t *testing.T) {
	models := measuredConfigs(t)
	for _, c := range []struct {
		config, want string
		side         int
	}{
		{`{"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}`, "a vit model reads those of one size, or none", 384},
		{string(models["autoencoder"].Config), "want a multiple of 8 pixels", 500},
		{string(models["stabilityai/stable-diffusion-xl-base-1.0 unet"].Config), "want a multiple of 32 pixels", 520},
		{string(models["flux"].Config), "want a multiple of 16 pixels", 520},
		{string(models["flux"].Config), "want a side of 1 to", 0},
		{string(models["sd3"].Config), "fewer than their patches", 1 << 16},
	} {
		f, err := ReadFile(pipelineFolder(t, map[string]string{"config.json": c.config}))
		require.NoError(t, err)
		_, err = f.Images(c.side)
		assert.ErrorContains(t, err, c.want)
	}
}

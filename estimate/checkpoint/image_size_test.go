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

// wanPipeline has the models of a small pipeline of videos. Its autoencoder makes 16 pixels of one, where the first version
// of Wan makes 8.
func wanPipeline(t *testing.T) map[string]string {
	models := measuredConfigs(t)
	return map[string]string{
		"model_index.json":        `{"_class_name": "WanPipeline", "transformer": ["diffusers", "WanTransformer3DModel"], "vae": ["diffusers", "AutoencoderKLWan"]}`,
		"transformer/config.json": string(models["wan"].Config), "vae/config.json": string(models["vae of wan 2.2"].Config),
	}
}

// A model makes videos of as many frames as are asked for, of the size that is asked for, and its parameters stay.
func TestVideos(t *testing.T) {
	models := measuredConfigs(t)
	alone := func(name string) string {
		return pipelineFolder(t, map[string]string{"config.json": string(models[name].Config)})
	}
	type video struct{ frames, side int }
	for path, want := range map[string]struct {
		usual video
		read  []int // with 17 frames of 128 x 128 pixels
	}{
		pipelineFolder(t, wanPipeline(t)): {video{81, 960}, []int{1, 8, 5, 8, 8}},
		alone("wan"):                      {video{81, 480}, []int{1, 8, 5, 16, 16}},
		alone("hunyuan video"):            {video{129, 512}, []int{1, 8, 5, 16, 16}},
		alone("ltx"):                      {video{161, 512}, []int{1, 3 * 4 * 4, 16}},
		alone("vae of wan"):               {video{81, 480}, []int{1, 4, 5, 16, 16}},
		alone("vae of wan 2.2"):           {video{81, 960}, []int{1, 8, 5, 8, 8}},
		alone("vae of hunyuan video"):     {video{129, 512}, []int{1, 4, 5, 16, 16}},
		alone("vae of ltx"):               {video{161, 512}, []int{1, 16, 3, 4, 4}},
	} {
		usual, err := ReadFile(path)
		require.NoError(t, err)
		frames, side := usual.Video()
		assert.Equal(t, want.usual, video{frames, side})
		c, err := usual.Videos(17)
		require.NoError(t, err)
		c, err = c.Images(128)
		require.NoError(t, err)
		frames, side = c.Video()
		assert.Equal(t, video{17, 128}, video{frames, side})
		frames, side = usual.Video()
		assert.Equal(t, want.usual, video{frames, side}, "the file stays as it is")
		input, err := c.Input(1, 0)
		require.NoError(t, err)
		r, err := c.Report(input)
		require.NoError(t, err)
		assert.Equal(t, want.read, []int(r.Inputs[0]))
		plain, err := usual.Report()
		require.NoError(t, err)
		assert.Equal(t, plain.Params, r.Params)
	}
}

// The autoencoder of a pipeline decodes as many frames as the transformer makes.
func TestVideosOfAPipelineAreDecoded(t *testing.T) {
	usual, err := ReadFile(pipelineFolder(t, wanPipeline(t)))
	require.NoError(t, err)
	peak := func(frames int) int64 {
		c, err := usual.Videos(frames)
		require.NoError(t, err)
		c, err = c.Images(128)
		require.NoError(t, err)
		input, err := c.Input(1, 0)
		require.NoError(t, err)
		r, err := c.Report(input)
		require.NoError(t, err)
		return int64(r.Inference.Peak.Bytes)
	}
	const frame = 3 * 128 * 128 * 4 // of the video that the autoencoder joins
	assert.GreaterOrEqual(t, peak(161)-peak(81), int64(80*frame))
}

func TestVideosThatAreRefused(t *testing.T) {
	models := measuredConfigs(t)
	for _, c := range []struct {
		model, want string
		frames      int
	}{
		{"wan", "videos of 12 frames: want 4k + 1 frames, such as 9 or 13", 12},
		{"wan", "want 4k + 1 frames, such as 1 or 5", 4},
		{"wan", "want 1 to 8192 frames", 0},
		{"vae of wan", "want 1 to 8192 frames", 1 << 14},
		{"vae of hunyuan video", "want 4k + 1 frames, such as 13 or 17", 16},
		{"ltx", "want 8k + 1 frames, such as 9 or 17", 13},
		{"vae of ltx", "want 8k + 1 frames, such as 9 or 17", 13},
		{"flux", "a FluxTransformer2DModel model makes no videos", 13},
		{"unet", "a UNet2DConditionModel model makes no videos", 13},
		{"autoencoder", "makes no videos", 13},
	} {
		f, err := ReadFile(pipelineFolder(t, map[string]string{"config.json": string(models[c.model].Config)}))
		require.NoError(t, err)
		_, err = f.Videos(c.frames)
		require.ErrorContains(t, err, c.want, c.model)
	}
	c, err := ReadFile(pipelineFolder(t, wanPipeline(t)))
	require.NoError(t, err)
	_, err = c.Videos(12)
	require.ErrorContains(t, err, "want 4k + 1 frames")
	_, err = c.Images(520)
	require.ErrorContains(t, err, "want a multiple of 32 pixels")
	c, err = ReadFile(pipelineFolder(t, fluxPipeline(t)))
	require.NoError(t, err)
	_, err = c.Videos(5)
	require.ErrorContains(t, err, "a FluxTransformer2DModel model makes no videos")
	frames, side := c.Video()
	assert.Zero(t, frames+side)
}

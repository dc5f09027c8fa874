package estimating

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

// visionConfig writes the config.json of a small Qwen2-VL and returns its path.
func visionConfig(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"],
		"text_config": {"model_type": "qwen2_vl_text", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100},
		"vision_config": {"model_type": "qwen2_vl_vision", "depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 14}}`), 0o600))
	return path
}

// Images in the text have tokens and memory of their own, and the first line says how many.
func TestEstimateImages(t *testing.T) {
	config := visionConfig(t)
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run([]string{"estimate", config, "--images", "2", "--image-size", "640x480"}, nil, &stdout, &stderr), stderr.String())
	first, _, _ := strings.Cut(stdout.String(), "\n")
	assert.True(t, strings.HasSuffix(first, ", 1 x 2,830 tokens (assumed), 2 images of 782 tokens together"), first)
	text, seen := estimateJSON(t, config+" --seq 2048"), estimateJSON(t, config+" --seq 2048 --images 1")
	assert.Zero(t, text.ImageTokens)
	assert.Equal(t, 1, seen.Images)
	assert.Equal(t, 1225, seen.ImageTokens)
	assert.Contains(t, strings.Join(seen.Assumed, " "), "--image-size 1024x1024")
	assert.Greater(t, seen.Peak, text.Peak)
	most := estimateJSON(t, config+" --serve --images 1 --fits 4GiB --max-context-length")
	assert.Greater(t, most.Context, most.ImageTokens)

	for flags, want := range map[string]string{
		config + " --images -1":                                      "want 1 or more",
		config + " --image-size 640x480":                             "--image-size needs --images",
		config + " --images 1 --image-size wide":                     "want a width and a height",
		config + " --images 1 --image-size 9000x20":                  "one side is more than 200 times as long",
		config + " --images 1 --seq 100":                             "the images of each text take 1225 tokens",
		config + " --images 1 --serve --seq 2048 --prefill-chunk 64": "the images of each text take 1225 tokens",
		config + " --images 1 --serve --engine llama.cpp":            "--images is about PyTorch",
		"gpt2 --images 1":                                            "reads no images with",
	} {
		stdout.Reset()
		stderr.Reset()
		assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate "+flags), nil, &stdout, &stderr), flags)
		assert.Contains(t, stderr.String(), want, flags)
	}
}

// Sounds in the text have tokens and memory of their own, as many as the processor has for their length.
func TestEstimateSounds(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "qwen2_audio", "architectures": ["Qwen2AudioForConditionalGeneration"],
		"text_config": {"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100},
		"audio_config": {"model_type": "qwen2_audio_encoder", "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}}`), 0o600))
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run([]string{"estimate", config, "--sounds", "2", "--seconds", "12.5"}, nil, &stdout, &stderr), stderr.String())
	first, _, _ := strings.Cut(stdout.String(), "\n")
	assert.True(t, strings.HasSuffix(first, "1 x 2,672 tokens (assumed), 2 sounds of 624 tokens together"), first)
	text, heard := estimateJSON(t, config+" --seq 2048"), estimateJSON(t, config+" --seq 2048 --sounds 1")
	assert.Zero(t, text.SoundTokens)
	assert.Equal(t, 1, heard.Sounds)
	assert.Equal(t, 750, heard.SoundTokens)
	assert.Contains(t, strings.Join(heard.Assumed, " "), "--seconds 30")
	assert.Greater(t, heard.Peak, text.Peak)

	for flags, want := range map[string]string{
		config + " --sounds -1":                           "want 1 or more",
		config + " --seconds 3":                           "--seconds needs --sounds",
		config + " --sounds 1 --seconds -3":               "want more than 0",
		config + " --sounds 1 --seconds 0.01":             "so short a sound",
		config + " --sounds 1 --seq 100":                  "the sounds of each text take 750 tokens",
		config + " --images 1":                            "reads no images with its text",
		visionConfig(t) + " --images 1 --sounds 1":        "reads no sounds with its text",
		config + " --sounds 1 --serve --engine llama.cpp": "--sounds is about PyTorch",
		"gpt2 --sounds 1":                                 "reads no sounds with",
	} {
		stdout.Reset()
		stderr.Reset()
		assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate "+flags), nil, &stdout, &stderr), flags)
		assert.Contains(t, stderr.String(), want, flags)
	}
}

// wanPipeline writes a small pipeline of videos and returns its folder.
func wanPipeline(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"model_index.json": `{"_class_name": "WanPipeline", "transformer": ["diffusers", "WanTransformer3DModel"], "vae": ["diffusers", "AutoencoderKLWan"]}`,
		"transformer/config.json": `{"_class_name": "WanTransformer3DModel", "num_attention_heads": 4, "attention_head_dim": 24, "in_channels": 4, "out_channels": 4,
			"text_dim": 48, "ffn_dim": 256, "num_layers": 2}`,
		"vae/config.json": `{"_class_name": "AutoencoderKLWan", "base_dim": 16, "z_dim": 4}`,
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// The first line says how many frames of which size a model makes, and an answer says what was assumed.
func TestEstimateVideos(t *testing.T) {
	dir := wanPipeline(t)
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run([]string{"estimate", dir, "--frames", "13", "--image", "128"}, nil, &stdout, &stderr), stderr.String())
	first, rest, _ := strings.Cut(stdout.String(), "\n")
	assert.True(t, strings.HasSuffix(first, "input (1, 4, 4, 16, 16), 13 frames of 128 x 128 pixels"), first)
	assert.Contains(t, rest, "Assumed, as not given: --batch 1\n")
	usual := estimateJSON(t, dir)
	assert.Equal(t, 81, usual.Frames)
	assert.Equal(t, "--batch 1 --image 480 --frames 81", strings.Join(usual.Assumed, " "))
	said := estimateJSON(t, dir+" "+strings.Join(usual.Assumed, " "))
	assert.Empty(t, said.Assumed)
	assert.Equal(t, usual.Peak, said.Peak)
	fewer := estimateJSON(t, dir+" --frames 13")
	assert.Equal(t, 13, fewer.Frames)
	assert.Less(t, fewer.Peak, usual.Peak)
	assert.Zero(t, estimateJSON(t, "gpt2").Frames)

	for flags, want := range map[string]string{
		dir + " --frames 0":              "want 1 or more",
		dir + " --frames 12":             "want 4k + 1 frames, such as 9 or 13",
		"gpt2 --frames 13":               "gpt2 model makes no videos",
		visionConfig(t) + " --frames 13": "makes no videos",
		dir + "/vae --frames 10000":      "want 1 to 8192 frames",
		dir + "/transformer --frames 4":  "want 4k + 1 frames, such as 1 or 5",
	} {
		stdout.Reset()
		stderr.Reset()
		assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate "+flags), nil, &stdout, &stderr), flags)
		assert.Contains(t, stderr.String(), want, flags)
	}
}

// The first line says which images a pipeline makes, not the shape of its latent.
func TestPixelsOfImages(t *testing.T) {
	for args, want := range map[string]string{
		"sdxl": ", 1 image of 1,024 x 1,024 pixels (assumed)\n", "sdxl-unet --batch 2": ", 2 images of 1,024 x 1,024 pixels (assumed)\n",
		"flux.1-dev": ", 1 image of 1,024 x 1,024 pixels (assumed)\n", "qwen-image --image 512": ", 1 image of 512 x 512 pixels\n", "wan2.1-t2v-1.3b": ", 81 frames of 480 x 480 pixels\n",
	} {
		var stdout, stderr bytes.Buffer
		require.Zero(t, run(strings.Fields("estimate "+args), nil, &stdout, &stderr), stderr.String())
		assert.Contains(t, stdout.String(), want, args)
	}
	assert.Contains(t, strings.Join(estimateJSON(t, "flux.1-dev").Assumed, " "), "--image 1024")
}

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
	assert.True(t, strings.HasSuffix(first, "input (1, 1294), 2 images of 782 tokens together"), first)
	text, seen := estimateJSON(t, config+" --seq 2048"), estimateJSON(t, config+" --seq 2048 --images 1")
	assert.Zero(t, text.ImageTokens)
	assert.Equal(t, 1, seen.Images)
	assert.Equal(t, 1225, seen.ImageTokens)
	assert.Contains(t, strings.Join(seen.Assumed, " "), "--image-size 1024x1024")
	assert.Greater(t, seen.Peak, text.Peak)
	most := estimateJSON(t, config+" --serve --images 1 --fits 4GiB --max-context-length")
	assert.Greater(t, most.Context, most.ImageTokens)

	for flags, want := range map[string]string{
		config + " --images 0":                                       "want 1 or more",
		config + " --image-size 640x480":                             "--image-size needs --images",
		config + " --images 1 --image-size wide":                     "want a width and a height",
		config + " --images 1 --image-size 9000x20":                  "one side is more than 200 times as long",
		config + " --images 1 --seq 100":                             "the images of each text take 1225 tokens",
		config + " --images 1 --serve --seq 2048 --prefill-chunk 64": "the images of each text take 1225 tokens",
		config + " --images 1 --serve --llama-cpp":                   "--images is about PyTorch",
		"gpt2 --images 1":                                            "reads no images with",
	} {
		stdout.Reset()
		stderr.Reset()
		assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate "+flags), nil, &stdout, &stderr), flags)
		assert.Contains(t, stderr.String(), want, flags)
	}
}

package checkpoint

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

const fluxIndex = `{"_class_name": "FluxPipeline", "_diffusers_version": "0.30.0", "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
	"text_encoder": ["transformers", "CLIPTextModel"], "text_encoder_2": ["transformers", "T5EncoderModel"], "image_encoder": [null, null],
	"tokenizer": ["transformers", "CLIPTokenizer"], "tokenizer_2": ["transformers", "T5TokenizerFast"],
	"transformer": ["diffusers", "FluxTransformer2DModel"], "vae": ["diffusers", "AutoencoderKL"]}`

// twoTensors has 12 parameters of bfloat16.
var twoTensors = string(safetensorsFile(`{"text.weight":{"dtype":"BF16","shape":[2,4],"data_offsets":[0,16]},"text.bias":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}}`, 24))

// pipelineFolder writes the files of a pipeline.
func pipelineFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// measuredConfigs are the config.json of diffusion.json, by name.
func measuredConfigs(t *testing.T) map[string]measuredDenoiser {
	t.Helper()
	data, err := os.ReadFile("testdata/torch/diffusion.json")
	require.NoError(t, err)
	var file map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &file))
	delete(file, "torch")
	delete(file, "diffusers")
	models := map[string]measuredDenoiser{}
	for name, text := range file {
		var m measuredDenoiser
		require.NoError(t, json.Unmarshal(text, &m))
		models[name] = m
	}
	return models
}

// fluxPipeline has all that is needed of a small FLUX.
func fluxPipeline(t *testing.T) map[string]string {
	models := measuredConfigs(t)
	return map[string]string{
		"model_index.json": fluxIndex, "scheduler/scheduler_config.json": "{}", "tokenizer/vocab.json": "{}",
		"transformer/config.json": string(models["flux"].Config), "vae/config.json": string(models["autoencoder"].Config),
		"text_encoder/config.json": `{"model_type": "clip_text_model"}`, "text_encoder/model.safetensors": twoTensors,
		"text_encoder/model.fp16.safetensors": twoTensors, "text_encoder_2/some.safetensors": twoTensors,
	}
}

// A pipeline counts all that it holds and trains the model that runs alone.
func TestPipelineOfParts(t *testing.T) {
	models := measuredConfigs(t)
	dir := pipelineFolder(t, fluxPipeline(t))
	c, err := ReadFile(filepath.Join(dir, "model_index.json"))
	require.NoError(t, err)
	assert.Equal(t, filepath.Base(dir), c.Name)
	name, err := c.Architecture()
	require.NoError(t, err)
	assert.Equal(t, "FluxTransformer2DModel", name)
	assert.EqualValues(t, 24, c.parameters())
	input, err := c.Input(1, 0)
	require.NoError(t, err)
	r, err := c.Report(input, estimate.Train("adam"))
	require.NoError(t, err)
	assert.Equal(t, models["flux"].Params+models["autoencoder"].Params+24, r.Params.Count)
	assert.Equal(t, models["flux"].Params, r.Trained.Count)
	notes := strings.Join(r.Notes, "\n")
	assert.Contains(t, notes, "counted by its config.json, since the folder has no safetensors of it: transformer, vae")
	assert.NotContains(t, notes, "the files hold")
	assert.Equal(t, []int{1, 64 * 64, 16}, []int(r.Output))
	decoded := 0
	for _, row := range r.Layers {
		if row.Path == "vae.decoder.conv_out" {
			decoded++
			assert.Equal(t, []int{1, 3, 512, 512}, []int(row.Output)) // of three blocks, which enlarge twice
		}
	}
	assert.Equal(t, 1, decoded)
}

// Adapters are those of the model that runs, and not of what is held beside it.
func TestPipelineOfAdapters(t *testing.T) {
	files := fluxPipeline(t)
	trained := func(path string) int64 {
		c, err := ReadFile(path)
		require.NoError(t, err)
		input, err := c.Input(1, 0)
		require.NoError(t, err)
		r, err := c.Report(input, estimate.Train("adam"), estimate.LoRA{Rank: 4, Targets: []string{"to_q", "to_k"}})
		require.NoError(t, err)
		assert.NotContains(t, strings.Join(r.Notes, "\n"), "the files hold")
		return r.Trained.Count
	}
	dir := pipelineFolder(t, files)
	alone := trained(filepath.Join(dir, "transformer"))
	assert.Positive(t, alone)
	assert.Equal(t, alone, trained(dir))
}

// What is no transformer has no loss of words.
func TestLossOfImages(t *testing.T) {
	for name, m := range measuredConfigs(t) {
		c, err := ReadFile(pipelineFolder(t, map[string]string{"config.json": string(m.Config)}))
		require.NoError(t, err, name)
		assert.Nil(t, c.Loss(), name)
	}
}

// One that lacks a part tells its parameters and names the part, and has no input, so that it is not said to fit.
func TestPipelineWithoutAPart(t *testing.T) {
	files := fluxPipeline(t)
	delete(files, "text_encoder_2/some.safetensors")
	c, err := ReadFile(pipelineFolder(t, files))
	require.NoError(t, err)
	const lacks = "not counted, since the folder has no safetensors of it: text_encoder_2 (T5EncoderModel)"
	_, err = c.Input(1, 0)
	require.ErrorContains(t, err, lacks)
	r, err := c.Report()
	require.NoError(t, err)
	assert.Empty(t, r.Inputs)
	assert.Contains(t, strings.Join(r.Notes, "\n"), lacks)
}

// Text encoders without weights count by their config.json.
func TestPipelineOfTextEncodersToCome(t *testing.T) {
	files := fluxPipeline(t)
	delete(files, "text_encoder/model.safetensors")
	delete(files, "text_encoder/model.fp16.safetensors")
	delete(files, "text_encoder_2/some.safetensors")
	files["text_encoder/config.json"] = `{"model_type": "clip_text_model", "architectures": ["CLIPTextModelWithProjection"], "vocab_size": 100, "hidden_size": 32,
		"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 16, "projection_dim": 24}`
	files["text_encoder_2/config.json"] = `{"model_type": "t5", "architectures": ["T5EncoderModel"], "vocab_size": 100, "d_model": 64, "d_kv": 8, "d_ff": 160, "num_layers": 3, "num_heads": 4,
		"relative_attention_num_buckets": 8, "feed_forward_proj": "gated-gelu"}`
	const clip = 100*32 + 16*32 + 4*(32*32+32) + 2*32*64 + 64 + 32 + 3*2*32 + 32*24
	const t5 = 123616 // as measured in families_enc.json
	c, err := ReadFile(pipelineFolder(t, files))
	require.NoError(t, err)
	input, err := c.Input(1, 0)
	require.NoError(t, err)
	r, err := c.Report(input)
	require.NoError(t, err)
	models := measuredConfigs(t)
	assert.Equal(t, models["flux"].Params+models["autoencoder"].Params+clip+t5, r.Params.Count)
	assert.Contains(t, strings.Join(r.Notes, "\n"), "counted by its config.json, since the folder has no safetensors of it: text_encoder, text_encoder_2, transformer, vae")
}

// Of a pipeline whose model is not known the weights count as they are stored.
func TestPipelineOfUnknownModel(t *testing.T) {
	c, err := ReadFile(pipelineFolder(t, map[string]string{
		"model_index.json":        `{"transformer": ["diffusers", "SomeTransformer3DModel"], "text_encoder": ["transformers", "T5EncoderModel"]}`,
		"transformer/config.json": `{"_class_name": "SomeTransformer3DModel"}`, "transformer/diffusion_pytorch_model.safetensors": twoTensors,
		"text_encoder/model.safetensors": twoTensors,
	}))
	require.NoError(t, err)
	_, err = c.Architecture()
	require.ErrorIs(t, err, ErrUnknownArchitecture)
	r, err := c.Report()
	require.NoError(t, err)
	assert.EqualValues(t, 24, r.Params.Count)
	assert.EqualValues(t, 48, r.Params.Bytes)
}

// Without weights the error is that of the model that would run.
func TestPipelineOfUnknownModelAlone(t *testing.T) {
	_, err := ReadFile(pipelineFolder(t, map[string]string{
		"model_index.json":        `{"transformer": ["diffusers", "SomeTransformer3DModel"]}`,
		"transformer/config.json": `{"_class_name": "SomeTransformer3DModel"}`,
	}))
	require.ErrorIs(t, err, ErrUnknownArchitecture)
	assert.ErrorContains(t, err, `part transformer: open config.json: _class_name: "SomeTransformer3DModel" is none of`)
}

func TestPipelinesThatAreWrong(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"is not JSON":           {"model_index.json": "{"},
		"names a path":          {"model_index.json": `{"../vae": ["diffusers", "AutoencoderKL"]}`},
		"has no parts":          {"model_index.json": `{"vae": ["diffusers", "AutoencoderKL"]}`},
		"has a damaged part":    {"model_index.json": `{"vae": ["diffusers", "AutoencoderKL"]}`, "vae/model.safetensors": "damaged"},
		"has a wrong config":    {"model_index.json": `{"vae": ["diffusers", "AutoencoderKL"]}`, "vae/config.json": `{"_class_name": "AutoencoderKL"}`},
		"has a part of numbers": {"model_index.json": `{"unet": ["diffusers", "UNet2DConditionModel"]}`, "unet/config.json": `{"_class_name": "UNet2DConditionModel", "block_out_channels": [-1]}`},
	} {
		_, err := ReadFile(pipelineFolder(t, files))
		require.ErrorIs(t, err, fs.ErrInvalid, name)
	}
}

// Guidance runs a U-Net over two latent images at once, with the text and without it: the scores of Stable Diffusion 1.5 with
// attention of its own took twice as much (docs/estimate-cases.csv). Training has none, and the autoencoder decodes one.
func TestPipelineIsGuided(t *testing.T) {
	unet := map[string]any{
		"_class_name": "UNet2DConditionModel", "block_out_channels": []int{32, 64}, "down_block_types": []string{"CrossAttnDownBlock2D", "DownBlock2D"},
		"up_block_types": []string{"UpBlock2D", "CrossAttnUpBlock2D"}, "cross_attention_dim": 64, "attention_head_dim": 8, "sample_size": 32, "layers_per_block": 1,
	}
	of := func(config map[string]any, opts ...estimate.Option) *estimate.Report {
		text, err := json.Marshal(config)
		require.NoError(t, err)
		c, err := ParseConfig("model", text)
		require.NoError(t, err)
		input, err := c.Input(1, 0)
		require.NoError(t, err)
		r, err := c.Report(append(opts, input)...)
		require.NoError(t, err)
		return r
	}
	pipe := func(opts ...estimate.Option) *estimate.Report {
		return of(map[string]any{"_class_name": "DiffusionPipeline", "parts": map[string]any{"unet": unet}}, opts...)
	}
	alone := of(unet)
	assert.InEpsilon(t, 2*float64(alone.Inference.Transient), float64(pipe().Inference.Transient), 0.05)
	assert.Equal(t, alone.Output, pipe().Output)
	assert.Equal(t, alone.Inputs, pipe().Inputs)
	assert.Equal(t, of(unet, estimate.Train("adam")).Training.Saved, pipe(estimate.Train("adam")).Training.Saved)
	unet["time_cond_proj_dim"] = 256 // the strength is embedded, as in latent consistency models
	assert.InEpsilon(t, float64(alone.Inference.Transient), float64(pipe().Inference.Transient), 0.05)
}

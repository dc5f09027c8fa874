package checkpoint

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// imageText is a model of images and text: how each part's settings are read.
type imageText struct {
	heads  []string // the classes with a head
	text   string   // the model_type of the text, where it does not say it or cannot
	vision string   // that of the tower
	family estimate.Family
	tower  func(vision, whole *hfConfig, tower *estimate.Transformer) error
}

// hfTexts are the families of text that are parts of other models.
var hfTexts = map[string]struct {
	base string
	read func(*hfConfig, *architecture) error
}{
	"llama":           {"LlamaModel", hfLlama},
	"mistral":         {"MistralModel", hfMistral},
	"qwen2":           {"Qwen2Model", hfQwen2},
	"qwen3":           {"Qwen3Model", hfQwen3},
	"qwen2_vl_text":   {"Qwen2Model", hfQwen2},
	"qwen2_5_vl_text": {"Qwen2Model", hfQwen2},
	"llama4_text":     {"Llama4TextModel", hfLlama4Text},
	"qwen3_vl_text":   {"Qwen3Model", hfQwen3},
}

// read reads both parts.
func (m imageText) read(c *hfConfig, a *architecture) error {
	class, err := c.class(m.heads...)
	if err != nil {
		return err
	}
	if c.VisionConfig == nil {
		return &Error{File: c.file, Where: "vision_config", Reason: "the key is missing"}
	}
	settings := c.Text
	if settings == nil { // older files have the text's settings among the whole's
		settings = c.raw
	}
	text, err := c.part(settings, m.text)
	if err != nil {
		return err
	}
	known, ok := hfTexts[text.ModelType]
	if !ok {
		return c.unknown("text_config", "model_type "+text.ModelType)
	}
	text.base, text.Architectures = known.base, nil
	if c.Tied != nil {
		text.Tied = c.Tied
	}
	if err := known.read(text, a); err != nil {
		return err
	}
	a.NoHead = class == c.base
	vision, err := c.part(c.VisionConfig, m.vision)
	if err != nil {
		return err
	}
	tower := estimate.Transformer{Family: m.family}
	if err := m.tower(vision, c, &tower); err != nil {
		return err
	}
	return c.vision(a, &tower)
}

// vision sets the tower, once its numbers are found good.
func (c *hfConfig) vision(a *architecture, tower *estimate.Transformer) error {
	seen := architecture{Transformer: *tower}
	if err := seen.check(); err != nil {
		return &Error{File: c.file, Where: "vision_config", Err: err}
	}
	a.Vision = tower
	return nil
}

// tower reads the numbers that most towers have.
func (c *hfConfig) tower(t *estimate.Transformer) error {
	return c.numbers(
		hfNumber{&t.Hidden, "hidden_size", c.HiddenSize, 0},
		hfNumber{&t.Blocks, "num_hidden_layers", c.Layers, 0},
		hfNumber{&t.Heads, "num_attention_heads", c.Heads, 0},
		hfNumber{&t.FFN, "intermediate_size", c.Intermediate, 0},
		hfNumber{&t.Image, "image_size", c.ImageSize, 224},
		hfNumber{&t.Patch, "patch_size", c.PatchSize, 16},
		hfNumber{&t.Channels, "num_channels", c.Channels, 3},
	)
}

// qwenTower reads the numbers of Qwen's towers, whose width is that of hidden.
func (c *hfConfig) qwenTower(t *estimate.Transformer, hidden *whole) error {
	var heads *whole
	if err := json.Unmarshal(c.NumHeads, &heads); err != nil {
		return &Error{File: c.file, Where: "num_heads", Err: err}
	}
	return c.numbers(
		hfNumber{&t.Hidden, "hidden_size", hidden, 0},
		hfNumber{&t.Blocks, "depth", c.Depth, 0},
		hfNumber{&t.Heads, "num_heads", heads, 0},
		hfNumber{&t.Patch, "patch_size", c.PatchSize, 14},
		hfNumber{&t.Channels, "in_channels", c.InChannels, 3},
		hfNumber{&t.Merge, "spatial_merge_size", c.Merge, 2},
	)
}

func hfMistral3(c *hfConfig, a *architecture) error {
	return imageText{
		heads: []string{"Mistral3ForConditionalGeneration"}, vision: "pixtral", family: estimate.PixtralVision,
		tower: func(v, c *hfConfig, t *estimate.Transformer) error {
			t.Bias = orBool(c.ProjectorBias, false)
			if err := v.tower(t); err != nil {
				return err
			}
			return c.numbers(hfNumber{&t.Merge, "spatial_merge_size", c.Merge, 2}, hfNumber{&t.HeadSize, "head_dim", v.HeadSize, max(1, t.Hidden/t.Heads)})
		},
	}.read(c, a)
}

func hfLLaVA(c *hfConfig, a *architecture) error {
	return imageText{
		heads: []string{"LlavaForConditionalGeneration"}, vision: "clip_vision_model", family: estimate.CLIPVision,
		tower: func(v, c *hfConfig, t *estimate.Transformer) error {
			t.Bias = orBool(c.ProjectorBias, true)
			return v.tower(t)
		},
	}.read(c, a)
}

func hfQwen2VL(c *hfConfig, a *architecture) error {
	a.Batched = true
	return imageText{
		heads: []string{"Qwen2VLForConditionalGeneration"}, text: "qwen2_vl_text", vision: "qwen2_vl_vision", family: estimate.Qwen2Vision,
		tower: func(v, _ *hfConfig, t *estimate.Transformer) error {
			ratio := 4.0
			if v.MLPRatio != nil {
				ratio = *v.MLPRatio
			}
			if err := v.qwenTower(t, v.EmbedDim); err != nil {
				return err
			}
			return v.times(&t.FFN, "mlp_ratio", t.Hidden, ratio)
		},
	}.read(c, a)
}

func hfQwen25VL(c *hfConfig, a *architecture) error {
	a.Batched = true
	return imageText{
		heads: []string{"Qwen2_5_VLForConditionalGeneration"}, text: "qwen2_5_vl_text", vision: "qwen2_5_vl_vision", family: estimate.Qwen25Vision,
		tower: func(v, _ *hfConfig, t *estimate.Transformer) error {
			if err := v.qwenTower(t, v.HiddenSize); err != nil {
				return err
			}
			return v.numbers(hfNumber{&t.FFN, "intermediate_size", v.Intermediate, 0})
		},
	}.read(c, a)
}

func hfQwen3VL(c *hfConfig, a *architecture) error {
	a.Batched = true
	return imageText{
		heads: []string{"Qwen3VLForConditionalGeneration"}, text: "qwen3_vl_text", vision: "qwen3_vl_vision", family: estimate.Qwen3Vision,
		tower: func(v, _ *hfConfig, t *estimate.Transformer) error {
			if err := v.qwenTower(t, v.HiddenSize); err != nil {
				return err
			}
			t.Taps = 3
			if v.Taps != nil {
				t.Taps = len(v.Taps)
			}
			return v.numbers(
				hfNumber{&t.FFN, "intermediate_size", v.Intermediate, 0},
				hfNumber{&t.Positions, "num_position_embeddings", v.ImagePositions, 2304},
			)
		},
	}.read(c, a)
}

func hfLlama4(c *hfConfig, a *architecture) error {
	return imageText{
		heads: []string{"Llama4ForConditionalGeneration"}, text: "llama4_text", vision: "llama4_vision_model", family: estimate.Llama4Vision,
		tower: func(v, _ *hfConfig, t *estimate.Transformer) error {
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
	if err := c.of(a, estimate.Llama4, "Llama4ForCausalLM"); err != nil {
		return err
	}
	a.ExpertFFN, a.SharedFFN = a.FFN, a.FFN
	if orBool(c.UseQKNorm, true) {
		a.QKNorm = estimate.NormHeads
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
			a.Kinds[i] |= estimate.Sparse
		}
		if a.Kinds[i]&estimate.NoRotation == 0 && c.ChunkSize != nil {
			a.Kinds[i] |= estimate.Windowed
		}
	}
	if c.ChunkSize != nil {
		return c.numbers(hfNumber{&a.Window, "attention_chunk_size", c.ChunkSize, 8192})
	}
	return nil
}

func hfMamba(c *hfConfig, a *architecture) error {
	class, err := c.class("MambaForCausalLM")
	if err != nil {
		return err
	}
	a.Family, a.NoHead, a.Tied, a.Heads = estimate.Mamba, class == c.base, orBool(c.Tied, true), 1
	if !orBool(c.ConvBias, true) {
		return c.unknown("use_conv_bias", "false")
	}
	s := estimate.StateSpace{Bias: orBool(c.UseBias, false)}
	a.Mixer = &s
	err = c.numbers(
		hfNumber{&a.Hidden, "hidden_size", c.HiddenSize, 0},
		hfNumber{&a.Blocks, "num_hidden_layers", c.Layers, 0},
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
		hfNumber{&s.State, "state_size", c.StateSize, 16},
		hfNumber{&s.Kernel, "conv_kernel", c.ConvKernel, 4},
	)
	if err != nil {
		return err
	}
	expand := 2.0
	if c.Expand != nil {
		expand = *c.Expand
	}
	if err := c.times(&s.Inner, "expand", a.Hidden, expand); err != nil {
		return err
	}
	var rank whole
	if json.Unmarshal(c.TimeStepRank, &rank) != nil { // "auto"
		rank = whole(a.Hidden+15) / 16
	}
	return c.numbers(hfNumber{&s.Rank, "time_step_rank", &rank, 0})
}

func hfCLIP(c *hfConfig, a *architecture) error {
	return c.pair(a, estimate.CLIP, "clip_text_model", "clip_vision_model")
}

func hfSigLIP(c *hfConfig, a *architecture) error {
	return c.pair(a, estimate.SigLIP, "siglip_text_model", "siglip_vision_model")
}

// pair reads the towers of texts and images of CLIP and SigLIP.
func (c *hfConfig) pair(a *architecture, f estimate.Family, textType, visionType string) error {
	if _, err := c.class(); err != nil {
		return err
	}
	if c.Text == nil || c.VisionConfig == nil {
		return &Error{File: c.file, Where: "text_config, vision_config", Reason: "the key is missing"}
	}
	text, err := c.part(c.Text, textType)
	if err != nil {
		return err
	}
	vision, err := c.part(c.VisionConfig, visionType)
	if err != nil {
		return err
	}
	if f == estimate.SigLIP && text.ProjectionSize != nil && vision.HiddenSize != nil && *text.ProjectionSize != *vision.HiddenSize {
		return c.unknown("projection_size", "another width than the images'")
	}
	a.Family = f
	err = text.numbers(
		hfNumber{&a.Hidden, "hidden_size", text.HiddenSize, 0},
		hfNumber{&a.Blocks, "num_hidden_layers", text.Layers, 0},
		hfNumber{&a.Heads, "num_attention_heads", text.Heads, 0},
		hfNumber{&a.FFN, "intermediate_size", text.Intermediate, 0},
		hfNumber{&a.Vocab, "vocab_size", text.Vocabulary, 0},
		hfNumber{&a.Positions, "max_position_embeddings", text.Context, 77},
		hfNumber{&a.Classes, "projection_dim", c.ProjectionDim, 512},
	)
	if err == nil {
		err = text.activation(a, text.HiddenAct, "quick_gelu")
	}
	if err != nil {
		return err
	}
	tower := estimate.Transformer{Family: estimate.CLIPVision}
	if err := vision.tower(&tower); err != nil {
		return err
	}
	var seen architecture
	if err := vision.activation(&seen, vision.HiddenAct, "quick_gelu"); err != nil {
		return err
	}
	tower.Activation = seen.Activation
	return c.vision(a, &tower)
}

func hfDINOv2(c *hfConfig, a *architecture) error {
	class, err := c.class("Dinov2ForImageClassification")
	if err != nil {
		return err
	}
	if !orBool(c.QKVBias, true) || !orBool(c.MaskToken, true) {
		return c.unknown("qkv_bias, use_mask_token", "false")
	}
	ratio := 4.0
	if c.MLPRatio != nil {
		ratio = *c.MLPRatio
	}
	c.Intermediate = new(whole(1)) // computed below
	if err := c.encoder(a); err != nil {
		return err
	}
	a.Family, a.GatedFFN = estimate.DINOv2, orBool(c.SwiGLU, false)
	if err := c.times(&a.FFN, "mlp_ratio", a.Hidden, ratio); err != nil {
		return err
	}
	if a.GatedFFN { // two thirds, rounded up to a multiple of 8
		a.FFN = (int(float64(a.FFN)*2/3) + 7) / 8 * 8
	}
	if class != c.base {
		a.Classes = c.labels()
	}
	return c.numbers(
		hfNumber{&a.Image, "image_size", c.ImageSize, 224},
		hfNumber{&a.Patch, "patch_size", c.PatchSize, 14},
		hfNumber{&a.Channels, "num_channels", c.Channels, 3},
	)
}

func hfSwin(c *hfConfig, a *architecture) error {
	class, err := c.class("SwinForImageClassification")
	if err != nil {
		return err
	}
	if !orBool(c.QKVBias, true) || orBool(c.AbsolutePositions, false) {
		return c.unknown("qkv_bias, use_absolute_embeddings", "another value than the usual")
	}
	var heads []int
	if len(c.Depths) == 0 || json.Unmarshal(c.NumHeads, &heads) != nil || len(heads) != len(c.Depths) {
		return &Error{File: c.file, Where: "depths, num_heads", Reason: "they are not lists of the same length"}
	}
	a.Family, a.Dropout, a.DropPath, a.Heads = estimate.Swin, c.HiddenDropout, c.DropPath, 1
	for i, depth := range c.Depths {
		if depth < 1 || heads[i] < 1 || depth > maxBlocks || heads[i] > largestNumber || i >= maxBlocks {
			return &Error{File: c.file, Where: "depths, num_heads", Reason: fmt.Sprintf("%d blocks of %d heads", depth, heads[i])}
		}
		a.Stages = append(a.Stages, estimate.Stage{Blocks: depth, Heads: heads[i]})
		a.Blocks += depth
	}
	if class != c.base {
		a.Classes = c.labels()
	}
	err = c.numbers(
		hfNumber{&a.Hidden, "embed_dim", c.EmbedDim, 96},
		hfNumber{&a.Image, "image_size", c.ImageSize, 224},
		hfNumber{&a.Patch, "patch_size", c.PatchSize, 4},
		hfNumber{&a.Channels, "num_channels", c.Channels, 3},
		hfNumber{&a.Window, "window_size", c.WindowSize, 7},
	)
	if err != nil {
		return err
	}
	ratio := 4.0
	if c.MLPRatio != nil {
		ratio = *c.MLPRatio
	}
	if err := c.times(&a.FFN, "mlp_ratio", a.Hidden, ratio); err != nil {
		return err
	}
	return c.activation(a, c.HiddenAct, "gelu")
}

package checkpoint

import (
	"encoding/json"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// imageText is a model of images and text: how each part's settings are read.
type imageText struct {
	heads  []string // the classes with a head
	text   string   // the model_type of the text, where it does not say it or cannot
	vision string   // that of the tower
	family family.Family
	tower  func(vision, whole *hfConfig, tower *family.Transformer) error
}

// hfTexts are the families of text that are parts of other models.
var hfTexts = map[string]struct {
	base string
	read func(*hfConfig, *architecture) error
}{
	"llama":           {"LlamaModel", hfLlama},
	"mistral":         {"MistralModel", hfMistral},
	"ministral3":      {"Ministral3Model", hfMinistral3},
	"qwen2":           {"Qwen2Model", hfQwen2},
	"qwen3":           {"Qwen3Model", hfQwen3},
	"qwen2_vl_text":   {"Qwen2Model", hfQwen2},
	"qwen2_5_vl_text": {"Qwen2Model", hfQwen2},
	"llama4_text":     {"Llama4TextModel", hfLlama4Text},
	"qwen3_vl_text":   {"Qwen3Model", hfQwen3},

	"qwen3_vl_moe_text": {"Qwen3MoeModel", hfQwen3VLMoEText},

	"qwen3_5_text":     {"Qwen3_5TextModel", hfQwen35},
	"qwen3_5_moe_text": {"Qwen3_5MoeTextModel", hfQwen35MoE},
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
	tower := family.Transformer{Family: m.family}
	if err := m.tower(vision, c, &tower); err != nil {
		return err
	}
	return c.vision(a, &tower)
}

// vision sets the tower, once its numbers are found good.
func (c *hfConfig) vision(a *architecture, tower *family.Transformer) error {
	seen := architecture{Transformer: *tower}
	if err := seen.check(); err != nil {
		return &Error{File: c.file, Where: "vision_config", Err: err}
	}
	a.Vision = tower
	return nil
}

// tower reads the numbers that most towers have.
func (c *hfConfig) tower(t *family.Transformer) error {
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
func (c *hfConfig) qwenTower(t *family.Transformer, hidden *whole) error {
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
		heads: []string{"Mistral3ForConditionalGeneration"}, vision: "pixtral", family: family.PixtralVision,
		tower: func(v, c *hfConfig, t *family.Transformer) error {
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
		heads: []string{"LlavaForConditionalGeneration"}, vision: "clip_vision_model", family: family.CLIPVision,
		tower: func(v, c *hfConfig, t *family.Transformer) error {
			t.Bias = orBool(c.ProjectorBias, true)
			return v.tower(t)
		},
	}.read(c, a)
}

func hfQwen2VL(c *hfConfig, a *architecture) error {
	a.Batched = true
	return imageText{
		heads: []string{"Qwen2VLForConditionalGeneration"}, text: "qwen2_vl_text", vision: "qwen2_vl_vision", family: family.Qwen2Vision,
		tower: func(v, _ *hfConfig, t *family.Transformer) error {
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
		heads: []string{"Qwen2_5_VLForConditionalGeneration"}, text: "qwen2_5_vl_text", vision: "qwen2_5_vl_vision", family: family.Qwen25Vision,
		tower: func(v, _ *hfConfig, t *family.Transformer) error {
			if err := v.qwenTower(t, v.HiddenSize); err != nil {
				return err
			}
			return v.numbers(hfNumber{&t.FFN, "intermediate_size", v.Intermediate, 0})
		},
	}.read(c, a)
}

func hfQwen3VL(c *hfConfig, a *architecture) error {
	a.Batched = true
	return c.qwen3VL(a, "Qwen3VLForConditionalGeneration", "qwen3_vl_text", "qwen3_vl_vision", 3)
}

func hfQwen3VLMoE(c *hfConfig, a *architecture) error {
	a.Batched = true
	return c.qwen3VL(a, "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", "qwen3_vl_moe_vision", 3)
}

// hfQwen3VLMoEText reads Qwen3 MoE whose weights of experts are always divided by their sum.
func hfQwen3VLMoEText(c *hfConfig, a *architecture) error {
	if err := hfQwen3MoE(c, a); err != nil {
		return err
	}
	a.UnscaledTopK = false
	return nil
}

func hfQwen35VL(c *hfConfig, a *architecture) error {
	return c.qwen3VL(a, "Qwen3_5ForConditionalGeneration", "qwen3_5_text", "qwen3_5_vision", 0)
}

func hfQwen35MoEVL(c *hfConfig, a *architecture) error {
	return c.qwen3VL(a, "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", "qwen3_5_moe_vision", 0)
}

// qwen3VL reads Qwen3-VL and its successors; taps are those of the tower where the key is absent.
func (c *hfConfig) qwen3VL(a *architecture, head, text, vision string, taps int) error {
	return imageText{
		heads: []string{head}, text: text, vision: vision, family: family.Qwen3Vision,
		tower: func(v, _ *hfConfig, t *family.Transformer) error {
			if err := v.qwenTower(t, v.HiddenSize); err != nil {
				return err
			}
			t.Taps = taps
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

package estimate

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// hfConfig has the keys of a Hugging Face config.json that say how large a model
// is. A nil pointer is a key that is absent or null.
type hfConfig struct {
	ModelType     string   `json:"model_type"`
	Architectures []string `json:"architectures"`
	DType         string   `json:"dtype"`
	TorchDType    string   `json:"torch_dtype"` // its name up to transformers 4

	HiddenSize   *int `json:"hidden_size"`
	Layers       *int `json:"num_hidden_layers"`
	Heads        *int `json:"num_attention_heads"`
	KVHeads      *int `json:"num_key_value_heads"`
	HeadSize     *int `json:"head_dim"`
	Intermediate *int `json:"intermediate_size"`
	Vocabulary   *int `json:"vocab_size"`
	Context      *int `json:"max_position_embeddings"`
	TokenTypes   *int `json:"type_vocab_size"`
	Window       *int `json:"sliding_window"`

	Experts         *int  `json:"num_local_experts"`
	QwenExperts     *int  `json:"num_experts"`
	ExpertsPerToken *int  `json:"num_experts_per_tok"`
	ExpertFFN       *int  `json:"moe_intermediate_size"`
	SparseStep      *int  `json:"decoder_sparse_step"`
	DenseLayers     []int `json:"mlp_only_layers"`
	NormTopK        *bool `json:"norm_topk_prob"`

	// DeepSeek's.
	RoutedExperts *int `json:"n_routed_experts"`
	SharedExperts *int `json:"n_shared_experts"`
	DenseFirst    *int `json:"first_k_dense_replace"`
	SparseEvery   *int `json:"moe_layer_freq"`
	QueryRank     *int `json:"q_lora_rank"`
	KVRank        *int `json:"kv_lora_rank"`
	RopeSize      *int `json:"qk_rope_head_dim"`
	NopeSize      *int `json:"qk_nope_head_dim"`
	ValueSize     *int `json:"v_head_dim"`

	Text         *hfConfig `json:"text_config"`   // of a model of images and text
	VisionConfig *hfConfig `json:"vision_config"` // its tower

	// What layers have a sliding window.
	LayerTypes    []string `json:"layer_types"`
	UseWindow     *bool    `json:"use_sliding_window"`
	WindowPattern *int     `json:"sliding_window_pattern"`
	FullLayers    *int     `json:"max_window_layers"`

	Tied             *bool    `json:"tie_word_embeddings"`
	AttentionBias    *bool    `json:"attention_bias"`
	MLPBias          *bool    `json:"mlp_bias"`
	QKVBias          *bool    `json:"qkv_bias"`
	QKNorm           *bool    `json:"qk_layernorm"`
	CrossAttention   *bool    `json:"add_cross_attention"`
	ScoreCap         *float64 `json:"attn_logit_softcapping"`
	LogitCap         *float64 `json:"final_logit_softcapping"`
	PositionEncoding string   `json:"position_embedding_type"`
	Rotary           *float64 `json:"partial_rotary_factor"`

	HiddenAct          string `json:"hidden_act"`
	HiddenActivation   string `json:"hidden_activation"`   // Gemma and its successors
	ActivationFunction string `json:"activation_function"` // GPT-2

	ResidualDropout  float64 `json:"resid_pdrop"`
	EmbeddingDropout float64 `json:"embd_pdrop"`
	AttentionDropout float64 `json:"attn_pdrop"`
	HiddenDropout    float64 `json:"hidden_dropout_prob"`
	ProbsDropout     float64 `json:"attention_probs_dropout_prob"`

	// GPT-2's names of sizes.
	NEmbd      *int `json:"n_embd"`
	NLayer     *int `json:"n_layer"`
	NHead      *int `json:"n_head"`
	NInner     *int `json:"n_inner"`
	NPositions *int `json:"n_positions"`

	// Vision.
	ImageSize *int              `json:"image_size"`
	PatchSize *int              `json:"patch_size"`
	Channels  *int              `json:"num_channels"`
	Labels    map[string]string `json:"id2label"`

	Quantization *struct {
		Method string `json:"quant_method"`
	} `json:"quantization_config"`

	WeightMap map[string]string `json:"weight_map"` // of an index, which is no config

	file string
	base string // class of the family's model without a head
}

const maxConfigFile = 16 << 20

// openConfig reads the architecture from a config.json.
func openConfig(path string) (architecture, error) {
	c, err := readHeader(path, readConfig)
	if err != nil {
		return architecture{}, err
	}
	return c.architecture()
}

// readConfig decodes a config.json.
func readConfig(r io.ReaderAt, size int64, file string) (*hfConfig, error) {
	if size > maxConfigFile {
		return nil, inFile(file, "it has %d bytes; a %s has at most %d", size, configName, maxConfigFile)
	}
	c := &hfConfig{file: file}
	if err := decodeJSON(io.NewSectionReader(r, 0, size), c); err != nil {
		return nil, &FileError{File: file, Reason: "it is not the JSON of a " + configName, Err: err}
	}
	switch {
	case c.WeightMap != nil:
		return nil, inFile(file, "it is an index of shards, but not named as one of safetensors (*%s)", indexSuffix)
	case c.ModelType == "":
		return nil, inFile(file, "it has no model_type: no %s of a transformer", configName)
	}
	return c, nil
}

// architecture turns the settings into an architecture.
func (c *hfConfig) architecture() (architecture, error) {
	family, ok := hfFamilies[c.ModelType]
	if !ok {
		return architecture{}, &FileError{File: c.file, Where: "model_type",
			Reason: fmt.Sprintf("%q is none of the families that are known, %s", shorten(c.ModelType), hfFamilyNames()), Err: ErrUnknownArchitecture}
	}
	c.base = family.base
	a := architecture{family: c.ModelType, dtype: c.dtype()}
	if c.Text != nil && a.dtype == 0 {
		a.dtype = c.Text.dtype()
	}
	if q := c.Quantization; q != nil {
		a.quantized = or(q.Method, "an unnamed method")
	}
	if err := family.read(c, &a); err != nil {
		return architecture{}, err
	}
	if err := a.check(); err != nil {
		return architecture{}, &FileError{File: c.file, Err: err}
	}
	return a, nil
}

func hfFamilyNames() string { return strings.Join(slices.Sorted(maps.Keys(hfFamilies)), ", ") }

// dtype is the type of the weights, and zero if it is not told or not known.
func (c *hfConfig) dtype() alloc.DType {
	d, err := alloc.ParseDType(or(c.DType, c.TorchDType))
	if err != nil {
		return 0
	}
	return d
}

// class returns the class of the model, which must be the family's base or one with a
// head that is known.
func (c *hfConfig) class(heads ...string) (string, error) {
	if len(c.Architectures) == 0 {
		return c.base, nil
	}
	if class := c.Architectures[0]; class != c.base && !slices.Contains(heads, class) {
		return "", c.unknown("architectures", class)
	}
	return c.Architectures[0], nil
}

// labels is the width of a classifier; transformers takes 2 where there is no id2label.
func (c *hfConfig) labels() int {
	if c.Labels == nil {
		return 2
	}
	return max(1, len(c.Labels))
}

// hfNumber is a number and the key it is read from; without is its value where
// the key is absent, 0 if it must not be.
type hfNumber struct {
	to      *int
	key     string
	value   *int
	without int
}

// largestNumber bounds every number of an architecture.
const largestNumber = math.MaxInt32

func (c *hfConfig) numbers(numbers ...hfNumber) error {
	for _, n := range numbers {
		switch {
		case n.value == nil && n.without == 0:
			return &FileError{File: c.file, Where: n.key, Reason: "the key is missing"}
		case n.value == nil:
			*n.to = n.without
		default:
			*n.to = *n.value
		}
		if *n.to < 1 || *n.to > largestNumber {
			return &FileError{File: c.file, Where: n.key, Reason: fmt.Sprintf("%d is not a number from 1 to %d", *n.to, largestNumber)}
		}
	}
	return nil
}

// window is the sliding window of all layers, 0 for none.
func (c *hfConfig) window() int {
	if c.Window == nil {
		return 0
	}
	return *c.Window
}

// windows reads the sliding window and which layers do not have it: those that
// layer_types tells, or where it is absent those that full says, by the number from 0.
func (c *hfConfig) windows(a *architecture, full func(layer int) bool) error {
	if a.Window = c.window(); a.Window == 0 {
		return nil
	}
	if c.LayerTypes != nil && len(c.LayerTypes) != a.Blocks {
		return &FileError{File: c.file, Where: "layer_types", Reason: fmt.Sprintf("it has %d entries for %d layers", len(c.LayerTypes), a.Blocks)}
	}
	for i := range min(a.Blocks, maxBlocks+1) { // more are an error
		switch {
		case c.LayerTypes == nil:
			if full(i) {
				a.FullBlocks++
			}
		case c.LayerTypes[i] == "full_attention":
			a.FullBlocks++
		case c.LayerTypes[i] != "sliding_attention":
			return c.unknown("layer_types", c.LayerTypes[i])
		}
	}
	return nil
}

func orNumber(value *int, without int) *int {
	if value == nil {
		return &without
	}
	return value
}

func orBool(value *bool, without bool) bool {
	if value == nil {
		return without
	}
	return *value
}

// unknown is the error of a setting that makes another architecture.
func (c *hfConfig) unknown(key, value string) error {
	return &FileError{File: c.file, Where: key, Reason: fmt.Sprintf("%s is not supported for %q", shorten(value), c.ModelType), Err: ErrUnknownArchitecture}
}

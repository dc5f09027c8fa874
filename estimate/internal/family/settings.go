package family

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// Class returns the model's class. It must be the family's base class or one of heads.
func (c *Config) Class(heads ...string) string {
	classes := c.Names("architectures")
	if len(classes) == 0 {
		return c.Base
	}
	if classes[0] != c.Base && !slices.Contains(heads, classes[0]) {
		c.Unknown("architectures", classes[0])
	}
	return classes[0]
}

// Named returns the class of the family whose name ends so, such as LlamaForCausalLM beside LlamaModel.
func (c *Config) Named(end string) string {
	return strings.TrimSuffix(strings.TrimSuffix(c.Base, "Model"), "Text") + end
}

// Labels returns the width of a classifier. Without id2label, transformers takes 2.
func (c *Config) Labels() int {
	var labels map[string]string
	if !c.Decode("id2label", &labels) {
		return max(1, min(c.Whole("num_labels", 2), LargestNumber))
	}
	return max(1, len(labels))
}

// ClassesOf returns the width of a class's classifier; 0 for the class without a head.
func (c *Config) ClassesOf(class string) int {
	if class == c.Base {
		return 0
	}
	return c.Labels()
}

// The classifiers that transformers 5.24.0 makes for any decoder (modeling_layers.py,
// GenericForSequenceClassification and those below it; modeling_gpt2.py and others have the same).
const (
	forSequences = "ForSequenceClassification" // a Linear without a bias
	forTokens    = "ForTokenClassification"    // dropout and a Linear
	forAnswers   = "ForQuestionAnswering"      // a Linear of two columns, where an answer begins and ends
)

// heads reads the head of a decoder. words are the classes that write texts; the others are the base class and the
// classifiers.
func (c *Config) heads(a *Model, words ...string) {
	known := slices.Clone(words)
	for _, end := range []string{forSequences, forTokens, forAnswers} {
		known = append(known, c.Named(end), strings.TrimSuffix(c.Base, "Model")+end) // Gemma3Text has the second
	}
	class := c.Class(known...)
	a.NoHead = !slices.Contains(words, class)
	switch {
	case class == c.Base:
	case strings.HasSuffix(class, forSequences):
		a.Classes = c.Labels()
	case strings.HasSuffix(class, forTokens):
		a.Classes, a.BiasedClasses, a.HeadDropout = c.Labels(), true, c.classifierDropout()
	case strings.HasSuffix(class, forAnswers):
		a.Classes, a.BiasedClasses = 2, true
	}
}

// classifierDropout returns the dropout before a classifier of tokens.
func (c *Config) classifierDropout() float64 {
	return c.Ratio("classifier_dropout", c.Ratio("hidden_dropout", 0.1))
}

// Sizes reads the numbers that every transformer must have.
func (c *Config) Sizes(t *Transformer) {
	c.Number(&t.Hidden, "hidden_size", 0)
	c.Number(&t.Blocks, "num_hidden_layers", 0)
	c.Number(&t.Heads, "num_attention_heads", 0)
	c.Number(&t.FFN, "intermediate_size", 0)
}

// Pixels reads the sizes of images; patch is the side of a patch if the key is missing.
func (c *Config) Pixels(t *Transformer, patch int) {
	c.square(&t.Image, "image_size", 224)
	c.square(&t.Patch, "patch_size", patch)
	c.Number(&t.Channels, "num_channels", 3)
}

// square reads the side of a square: a number, or a list of its height and width.
func (c *Config) square(to *int, key string, without int) {
	var sides []json.RawMessage
	if json.Unmarshal(c.Value(key), &sides) == nil && sides != nil && len(sides) != 2 {
		c.Fail(key, "it has %d numbers; want a height and a width", len(sides))
	}
	c.Number(to, key, without)
}

// decoder reads what all decoders with rotary positions have in common. kvHeads is the number of KV
// heads if the key is missing; 0 means as many as heads.
func (c *Config) decoder(a *Model, kvHeads int, tied bool) {
	c.heads(a, c.Named("ForCausalLM"))
	c.Sizes(&a.Transformer)
	c.Number(&a.Vocab, "vocab_size", 0)
	a.Tied = c.Flag("tie_word_embeddings", tied)
	c.optional(&a.HeadSize, "head_dim")
	c.Number(&a.KVHeads, "num_key_value_heads", cmp.Or(kvHeads, a.Heads))
	a.Context = max(0, min(c.Whole("max_position_embeddings", 0), mostPositions))
}

// likeLlama reads a decoder that differs from Llama in little more than its layers.
func (c *Config) likeLlama(a *Model) {
	c.decoder(a, 0, false)
	c.Activation(a, c.Word("hidden_act"), "silu")
}

// rotatedInPart reads like likeLlama, for families in which only a part of each head rotates.
func (c *Config) rotatedInPart(a *Model, without float64) {
	c.likeLlama(a)
	c.rotaryPart(a, without)
}

// Encoder reads what BERT and ViT have in common.
func (c *Config) Encoder(a *Model) {
	c.Sizes(&a.Transformer)
	a.Dropout = max(c.Dropout("hidden_dropout_prob"), c.Dropout("attention_probs_dropout_prob"))
	c.Activation(a, c.Word("hidden_act"), "gelu")
}

// activations maps names to the functions whose memory is known.
var activations = map[string]layer.Activation{
	"silu": layer.UseSiLU, "swish": layer.UseSiLU, "gelu": layer.UseGELU, "gelu_new": layer.UseNewGELU,
	"gelu_pytorch_tanh": layer.UseGELUTanh, "relu": layer.UseReLU, "quick_gelu": layer.UseQuickGELU,
	"relu2": layer.UseSquaredReLU, "xielu": layer.UseXIELU,
}

func (c *Config) Activation(a *Model, name, without string) {
	var ok bool
	if a.Activation, ok = activations[cmp.Or(name, without)]; !ok {
		c.Unknown("activation", name)
	}
}

// biases reads whether the projections of attention have biases, and those of the MLP.
func (c *Config) biases(a *Model) {
	a.AttentionBias, a.MLPBias = c.Flag("attention_bias", false), c.Flag("mlp_bias", false)
}

// noBias keeps an error if the projections of attention have biases.
func (c *Config) noBias() {
	if c.Flag("attention_bias", false) {
		c.Unknown("attention_bias", "true")
	}
}

// rotaryPart reads which fraction of a head rotates.
func (c *Config) rotaryPart(a *Model, without float64) {
	part := c.Ratio("partial_rotary_factor", c.Ratio("rotary_pct", without)) // rotary_pct is GPT-NeoX's name
	var rope struct {
		Part *float64 `json:"partial_rotary_factor"`
	}
	if c.Decode("rope_parameters", &rope); rope.Part != nil {
		part = *rope.Part
	}
	if !(part > 0 && part <= 1) {
		c.Fail("partial_rotary_factor", "it is not above 0 and at most 1")
		return
	}
	a.RotaryDim = int(part * float64(a.HeadWidth()))
}

// layerTypes returns the type of each layer, which must be one of known, or nil if the key is missing.
func (c *Config) layerTypes(a *Model, known ...string) []string {
	types := c.Names("layer_types")
	for _, t := range types {
		if !slices.Contains(known, t) {
			c.Unknown("layer_types", t)
		}
	}
	if types != nil && len(types) != a.Blocks {
		c.Fail("layer_types", "it has %d entries for %d layers", len(types), a.Blocks)
		return nil
	}
	return types
}

// Windows reads the sliding window, and which layers have none. without is its length if the key is
// missing. layer_types says which layers have none; if it is missing, full does, by the layer's
// number from 0.
func (c *Config) Windows(a *Model, without int, full func(layer int) bool) {
	types := c.layerTypes(a, "full_attention", "sliding_attention")
	if a.Window = c.Whole("sliding_window", without); a.Window == 0 {
		return
	}
	a.mark(Windowed, func(layer int) bool {
		if types != nil {
			return types[layer] != "full_attention"
		}
		return !full(layer)
	})
}

// turnedWindows reads which layers have a window. If any do, the others do not rotate.
func (c *Config) turnedWindows(a *Model) {
	every := max(1, c.Whole("sliding_window_pattern", 4))
	c.Windows(a, 0, each(every))
	a.stillBeyondWindow()
}

// unrotated marks the layers that do not rotate: those with a 0 in no_rope_layers or, if that is
// missing, every fourth, or as no_rope_layer_interval says.
func (c *Config) unrotated(a *Model) {
	still, rotate := each(max(1, c.Whole("no_rope_layer_interval", 4))), c.List("no_rope_layers")
	if len(rotate) != 0 && len(rotate) != a.Blocks {
		c.Fail("no_rope_layers", "it has %d entries for %d layers", len(rotate), a.Blocks)
		return
	}
	a.mark(NoRotation, func(layer int) bool {
		if len(rotate) == 0 {
			return still(layer)
		}
		return rotate[layer] == 0
	})
}

// stateType reads the type of recurrent states. transformers keeps them in float32 whatever it is; engines heed it.
func (c *Config) stateType(a *Model) {
	for _, key := range []string{"mamba_ssm_dtype", "mamba_ssm_cache_dtype"} {
		word := c.Word(key)
		if word == "" || word == "auto" {
			continue
		}
		var err error
		if a.StateType, err = alloc.ParseDType(word); err != nil {
			c.Unknown(key, word)
		}
	}
}

// borrowing reads how many of the last layers use the keys and values of earlier ones.
func (c *Config) borrowing(a *Model, without int) {
	c.keep("num_kv_shared_layers", a.borrow(c.Whole("num_kv_shared_layers", without)))
}

// mixture reads the numbers of a mixture. number is the key for the number of experts.
func (c *Config) mixture(a *Model, number string, experts, top int) {
	c.Number(&a.Experts, number, experts)
	c.Number(&a.TopK, "num_experts_per_tok", top)
}

// sparseLayers reads which layers have a mixture, if there is a list of them.
func (c *Config) sparseLayers(a *Model) {
	types := c.Names("mlp_layer_types")
	switch {
	case types == nil:
	case len(types) != a.Blocks:
		c.Fail("mlp_layer_types", "it has %d entries for %d layers", len(types), a.Blocks)
	default:
		a.sparse(func(block int) bool { return types[block] == "sparse" })
	}
}

package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// dtype is the type of the weights, and zero if it is not told or not known.
func (c *hfConfig) dtype() alloc.DType {
	d, err := alloc.ParseDType(cmp.Or(c.DType, c.TorchDType))
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
		return max(1, int(min(*orNumber(c.LabelCount, 2), largestNumber)))
	}
	return max(1, len(c.Labels))
}

// whole is a whole number, which some files write as 2048.0.
type whole int

// UnmarshalJSON implements json.Unmarshaler. A list, such as Gemma 3n has for each layer, must have one
// number again and again.
func (w *whole) UnmarshalJSON(text []byte) error {
	var each []whole
	if len(text) > 0 && text[0] == '[' {
		if err := json.Unmarshal(text, &each); err != nil {
			return err
		}
		if each = slices.Compact(each); len(each) != 1 {
			return &json.UnmarshalTypeError{Value: "array of different numbers", Type: reflect.TypeFor[int]()}
		}
		*w = each[0]
		return nil
	}
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil || n != math.Trunc(n) || math.Abs(n) > 1<<53 {
		return &json.UnmarshalTypeError{Value: "value " + shorten(string(text)), Type: reflect.TypeFor[int]()}
	}
	*w = whole(n)
	return nil
}

// hfNumber is a number and the key it is read from; without is its value where
// the key is absent, 0 if it must not be.
type hfNumber struct {
	to      *int
	key     string
	value   *whole
	without int
}

func (c *hfConfig) numbers(numbers ...hfNumber) error {
	for _, n := range numbers {
		switch {
		case n.value == nil && n.without == 0:
			return &Error{File: c.file, Where: n.key, Reason: "the key is missing"}
		case n.value == nil:
			*n.to = n.without
		default:
			*n.to = int(*n.value)
		}
		if *n.to < 1 || *n.to > largestNumber {
			return &Error{File: c.file, Where: n.key, Reason: fmt.Sprintf("%d is not a number from 1 to %d", *n.to, largestNumber)}
		}
	}
	return nil
}

// window is the sliding window of all layers, 0 for none.
func (c *hfConfig) window() int {
	if c.Window == nil {
		return 0
	}
	return int(*c.Window)
}

// windows reads the sliding window and which layers do not have it: those that
// layer_types tells, or where it is absent those that full says, by the number from 0.
func (c *hfConfig) windows(a *architecture, full func(layer int) bool) error {
	if a.Window = c.window(); a.Window == 0 {
		return nil
	}
	if c.LayerTypes != nil && len(c.LayerTypes) != a.Blocks {
		return &Error{File: c.file, Where: "layer_types", Reason: fmt.Sprintf("it has %d entries for %d layers", len(c.LayerTypes), a.Blocks)}
	}
	kinds := a.kinds()
	for i := range kinds {
		windowed := true
		switch {
		case c.LayerTypes == nil:
			windowed = !full(i)
		case c.LayerTypes[i] == "full_attention":
			windowed = false
		case c.LayerTypes[i] != "sliding_attention":
			return c.unknown("layer_types", c.LayerTypes[i])
		}
		if windowed {
			kinds[i] |= family.Windowed
		}
	}
	return nil
}

// kinds are the kinds of the blocks, as many as are not an error.
func (a *architecture) kinds() []family.BlockKind {
	if a.Kinds == nil {
		a.Kinds = make([]family.BlockKind, min(a.Blocks, maxBlocks+1))
	}
	return a.Kinds
}

func orNumber(value *whole, without whole) *whole {
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
	return &Error{File: c.file, Where: key, Reason: fmt.Sprintf("%s is not supported for %q", shorten(value), c.ModelType), Err: ErrUnknownArchitecture}
}

// decoder reads what all decoders with rotary positions have in common. kvHeads is the
// number where the key is absent, 0 for as many as heads.
func (c *hfConfig) decoder(a *architecture, causal string, kvHeads int, tied bool) error {
	classifier := strings.TrimSuffix(causal, "ForCausalLM") + "ForSequenceClassification"
	class, err := c.class(causal, classifier)
	if err != nil {
		return err
	}
	if class == classifier {
		a.Classes = c.labels()
	}
	err = c.numbers(
		hfNumber{&a.Hidden, "hidden_size", c.HiddenSize, 0},
		hfNumber{&a.Blocks, "num_hidden_layers", c.Layers, 0},
		hfNumber{&a.Heads, "num_attention_heads", c.Heads, 0},
		hfNumber{&a.FFN, "intermediate_size", c.Intermediate, 0},
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
	)
	if err != nil {
		return err
	}
	a.NoHead = class != causal
	a.Tied = orBool(c.Tied, tied)
	if c.HeadSize != nil {
		if err := c.numbers(hfNumber{&a.HeadSize, "head_dim", c.HeadSize, 0}); err != nil {
			return err
		}
	}
	return c.numbers(hfNumber{&a.KVHeads, "num_key_value_heads", c.KVHeads, cmp.Or(kvHeads, a.Heads)})
}

// hfActivations has the functions whose memory is known, by their names.
var hfActivations = map[string]layer.Activation{
	"silu": layer.UseSiLU, "swish": layer.UseSiLU, "gelu": layer.UseGELU, "gelu_new": layer.UseNewGELU,
	"gelu_pytorch_tanh": layer.UseGELUTanh, "relu": layer.UseReLU, "quick_gelu": layer.UseQuickGELU,
	"relu2": layer.UseSquaredReLU,
}

func (c *hfConfig) activation(a *architecture, name, without string) error {
	var ok bool
	if a.Activation, ok = hfActivations[cmp.Or(name, without)]; !ok {
		return c.unknown("activation", name)
	}
	return nil
}

// rotaryPart reads what part of a head rotates.
func (c *hfConfig) rotaryPart(a *architecture, without float64) error {
	part := without
	for _, set := range []*float64{c.RotaryShare, c.Rotary, c.Rope.Rotary} {
		if set != nil {
			part = *set
		}
	}
	if !(part > 0 && part <= 1) {
		return &Error{File: c.file, Where: "partial_rotary_factor", Reason: "it is not above 0 and at most 1"}
	}
	a.RotaryDim = int(part * float64(headSize(a.Transformer)))
	return nil
}

// times reads a width that is a multiple of another.
func (c *hfConfig) times(to *int, key string, of int, ratio float64) error {
	wide := ratio * float64(of)
	if !(wide >= 1 && wide <= largestNumber) {
		return &Error{File: c.file, Where: key, Reason: fmt.Sprintf("%v times %d is not a number from 1 to %d", ratio, of, largestNumber)}
	}
	*to = int(wide)
	return nil
}

// noBias refuses projections of attention with biases.
func (c *hfConfig) noBias() error {
	if orBool(c.AttentionBias, false) {
		return c.unknown("attention_bias", "true")
	}
	return nil
}

// cacheAlone is what a config.json of an unknown family tells of its keys and values.
func (c *hfConfig) cacheAlone() architecture {
	a := architecture{family: c.ModelType, cache: true}
	if c.Text != nil {
		text, err := c.part(c.Text, "")
		if err != nil {
			return architecture{}
		}
		c = text
	}
	err := c.numbers(
		hfNumber{&a.Hidden, "hidden_size", c.HiddenSize, 0},
		hfNumber{&a.Blocks, "num_hidden_layers", c.Layers, 0},
		hfNumber{&a.Heads, "num_attention_heads", c.Heads, 0},
	)
	if err == nil {
		err = c.numbers(
			hfNumber{&a.KVHeads, "num_key_value_heads", c.KVHeads, a.Heads},
			hfNumber{&a.HeadSize, "head_dim", c.HeadSize, max(1, a.Hidden/a.Heads)},
		)
	}
	if err == nil {
		err = c.borrowing(&a, 0)
	}
	if err == nil && c.LayerTypes != nil && !slices.ContainsFunc(c.LayerTypes, strange) {
		err = c.windows(&a, nil)
	}
	if err != nil || a.check() != nil {
		return architecture{}
	}
	return a
}

// strange reports a layer_type that is neither with nor without a sliding window.
func strange(layer string) bool { return layer != "full_attention" && layer != "sliding_attention" }

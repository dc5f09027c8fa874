package estimate_test

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// qlora is LoRA of weights that are held in a base, as their files have them where that is "".
func qlora(b string, l estimate.LoRA) estimate.Option {
	if b == "" {
		return l
	}
	return together(l, estimate.Quantized{Base: b})
}

func adapted(t *testing.T, l estimate.LoRA, more ...estimate.Option) *estimate.Report {
	t.Helper()
	return model(t, layer.Public(mistral7b.Layers()), append([]estimate.Option{estimate.Tokens(1, 64), estimate.Precision(alloc.BFloat16),
		estimate.Train("adamw"), l}, more...)...)
}

// PEFT counts 13,631,488 parameters of adapters in Mistral 7B, as the file of the run of
// published_test.go confirms; they are float32, and so are their states.
func TestLoRA(t *testing.T) {
	l := estimate.LoRA{Rank: 16, Targets: []string{"q_proj", "k_proj", "v_proj", "o_proj"}}
	r := adapted(t, l)
	assert.Equal(t, estimate.Amount{Count: 13_631_488, Bytes: 4 * 13_631_488}, r.Trained)
	assert.EqualValues(t, int64(7_241_732_096+13_631_488), r.Params.Count)
	assert.EqualValues(t, 8*13_631_488, r.Training.Optimizer)
	assert.EqualValues(t, 4*13_631_488, r.Gradients)
	l.Targets = []string{"model.layers.0.self_attn.q_proj"}
	assert.EqualValues(t, 16*2*4096, adapted(t, l).Trained.Count, "a whole path")
	l.Targets = []string{"q_proj"}
	all := model(t, layer.Public(mistral7b.Layers()), estimate.Tokens(1, 64), estimate.Precision(alloc.BFloat16))
	assert.Less(t, adapted(t, l).Retained, all.Retained, "frozen projections do not keep their inputs")
}

// Weights of linear layers but the head take 4.127 bits and 4.5 bits an element.
func TestQLoRA(t *testing.T) {
	l := estimate.LoRA{Rank: 16, Targets: []string{"q_proj"}}
	linear := int64(7_241_732_096 - 2*32000*4096 - 65*4096)
	others := 2 * (7_241_732_096 - linear)
	double := adapted(t, l, estimate.Quantized{Base: "nf4-double"})
	assert.InEpsilon(t, float64(linear)*(0.5+1.0/64+4.0/64/256)+float64(others+4*double.Trained.Count), float64(double.Training.Weights+double.Training.Buffers), 1e-4)
	once := adapted(t, l, estimate.Quantized{Base: "nf4"})
	assert.InEpsilon(t, float64(linear)*(0.5+4.0/64)+float64(others+4*once.Trained.Count), float64(once.Training.Weights+once.Training.Buffers), 1e-4)
	assert.Equal(t, double.Trained, once.Trained)
}

func TestFrozen(t *testing.T) {
	opts := []estimate.Option{estimate.InputShape(2, 3, 64, 64), estimate.Train("adam")}
	all := model(t, layer.Public(known(t, "resnet50")), opts...)
	head := model(t, layer.Public(known(t, "resnet50")), append(opts, estimate.Frozen("conv1", "bn1", "layer*"))...)
	assert.EqualValues(t, 2048*1000+1000, head.Trained.Count)
	assert.Equal(t, all.Params, head.Params)
	within := model(t, layer.Public(known(t, "resnet50")), append(opts, estimate.Frozen("0.conv1"))...)
	assert.EqualValues(t, all.Trained.Count-(64*64+256*128+512*256+1024*512), within.Trained.Count, "of the first block of each layer")
	assert.EqualValues(t, 8*head.Trained.Count, head.Training.Optimizer)
	assert.EqualValues(t, 2*2048*4, head.Retained, "the input of the head, and nothing before it")
}

// PEFT's "all-linear" leaves out the head alone.
func TestAdaptAllLinear(t *testing.T) {
	trained := func(targets ...string) int64 {
		return model(t, layer.Public(mistral7b.Layers()), estimate.Tokens(1, 4), estimate.LoRA{Rank: 8, Targets: targets}).Trained.Count
	}
	named := trained("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
	assert.Equal(t, named, trained("all-linear"))
	assert.EqualValues(t, 8*32*(2*(4096+4096)+2*(4096+1024)+3*(4096+14336)), named)
}

// What Frozen names gets no adapters, as PEFT's exclude_modules.
func TestAdaptWithoutWhatIsFrozen(t *testing.T) {
	adapters := func(frozen ...string) int64 {
		lora := estimate.LoRA{Rank: 8, Targets: []string{"q_proj"}}
		return model(t, layer.Public(mistral7b.Layers()), estimate.Tokens(1, 4), lora, estimate.Frozen(frozen...)).Trained.Count
	}
	each := int64(8 * (4096 + 4096))
	assert.Equal(t, 32*each, adapters())
	assert.Equal(t, 22*each, adapters("layers.1?"))
	assert.Equal(t, 31*each, adapters("model.layers.0.self_attn.q_proj"))
}

// Patterns may overlap: each that names a layer counts as met, whether or not another names it too.
func TestPatternsOverlap(t *testing.T) {
	names := []string{"all-linear", "q_proj", "model.layers.*.self_attn.q_proj"}
	text := estimate.Tokens(1, 4)
	all := model(t, layer.Public(mistral7b.Layers()), text, estimate.LoRA{Rank: 8, Targets: names[:1]})
	assert.Equal(t, all.Trained, model(t, layer.Public(mistral7b.Layers()), text, estimate.LoRA{Rank: 8, Targets: names}).Trained)
	held := model(t, layer.Public(mistral7b.Layers()), text, estimate.Quantized{Base: "nf4"})
	assert.Equal(t, held.Params, model(t, layer.Public(mistral7b.Layers()), text, estimate.Quantized{Base: "nf4", Layers: names}).Params)
	_, err := estimate.Model(layer.Public(mistral7b.Layers()), text, estimate.Frozen("lm_head", "model"), estimate.LoRA{Rank: 8, Targets: []string{"model"}})
	assert.ErrorContains(t, err, `LoRA: no Linear's path matches "model"`, "what another option names is not met by this one")
}

func TestAdaptSaysWhatIsWrong(t *testing.T) {
	for want, option := range map[string]estimate.Option{
		`LoRA: no Linear's path matches "query": their names are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head`: estimate.LoRA{Rank: 8, Targets: []string{"query"}},
		`LoRA: Rank is 0`:                           estimate.LoRA{Targets: []string{"q_proj"}},
		`there are no Targets`:                      estimate.LoRA{Rank: 8},
		`LoRA: Dropout is 1`:                        estimate.LoRA{Rank: 8, Targets: []string{"q_proj"}, Dropout: 1},
		`Frozen: no layer's path matches "nowhere"`: estimate.Frozen("nowhere"),
		`syntax error in pattern`:                   estimate.Frozen("["),
	} {
		_, err := estimate.Model(layer.Public(mistral7b.Layers()), estimate.Tokens(1, 4), option)
		assert.ErrorContains(t, err, want)
	}
}

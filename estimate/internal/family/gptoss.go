package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// GPTOSS is Llama with a mixture, attention sinks and biases.
var GPTOSS = &Family{
	Name:  "gpt-oss",
	style: style{norm: lateNorm, attention: ossAttention, mixture: func(_ Transformer, m layer.MoE) tape.Layer { return ossMoE{m} }},
	Types: []Type{{Name: "gpt_oss", Base: "GptOssModel", Read: readGPTOSS}},
	GGUF:  []GGUF{{Name: "gpt-oss", Window: 2}},
}

// ossMoE is the mixture of gpt-oss. Router and experts have biases; an expert computes (up + 1) x
// gate x sigmoid(1.702 gate) from clamped values.
type ossMoE struct{ layer.MoE }

func (ossMoE) Kind() string { return "MoE" }

func (l ossMoE) Declare(d *tape.Declaration) {
	l.Check(d)
	d.Layer("router", ossRouter(l))
	d.Layer("experts", ossExperts(l))
}

func (l ossMoE) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return l.Route(t, x, "router", ossRouter(l), ossExperts(l))
}

type ossRouter struct{ layer.MoE }

func (ossRouter) Kind() string { return "Router" }

func (l ossRouter) Declare(d *tape.Declaration) {
	d.Param("weight", l.Experts, l.Hidden)
	d.Param("bias", l.Experts)
}

// Forward records the softmax of each token's best scores.
func (l ossRouter) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	tokens := l.Tokens(t, x)
	chosen := alloc.Shape{tokens, setting.Or(l.TopK, 2)}
	scores := t.Op(tape.Op{
		In: []tape.Tensor{x}, Shape: alloc.Shape{tokens, l.Experts}, Params: true, Keep: []tape.Tensor{x},
		FLOPs: setting.FLOPs(tokens, l.Experts, l.Hidden, 2),
	})
	best := t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: chosen, KeepOwn: []tape.Own{{Shape: chosen, DType: alloc.Int64}}})
	return layer.KeepOutput(t, best)
}

type ossExperts struct{ layer.MoE }

func (l ossExperts) Kind() string { return layer.Experts(l).Kind() }

func (l ossExperts) Declare(d *tape.Declaration) {
	d.Add(tape.Param{Name: "gate_up_proj", Shape: alloc.Shape{l.Experts, l.Hidden, 2 * l.FFN}, Split: true})
	d.Add(tape.Param{Name: "gate_up_proj_bias", Shape: alloc.Shape{l.Experts, 2 * l.FFN}, Split: true})
	d.Add(tape.Param{Name: "down_proj", Shape: alloc.Shape{l.Experts, l.FFN, l.Hidden}, Split: true, Apart: true})
	d.Add(tape.Param{Name: "down_proj_bias", Shape: alloc.Shape{l.Experts, l.Hidden}, Split: true})
}

func (l ossExperts) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	y := l.Visit(t, x, func(both tape.Tensor) tape.Tensor {
		parts := t.Slices(both, l.FFN, l.FFN)
		gate := layer.KeepInput(t, parts[0], false)
		up := layer.KeepInput(t, parts[1], false)
		glu := (layer.QuickGELU{}).Forward(t, gate)
		up = t.Op(tape.Op{In: []tape.Tensor{up}, Shape: up.Shape, PassGrad: true})
		t.Hold(gate)
		return t.Mul(up, glu)
	}, true)
	t.Show(alloc.Shape{l.Tokens(t, x), l.Hidden})
	return y
}

func ossAttention(_ Transformer, a *layer.Attention) {
	a.Masks, a.Sinks, a.Paired, a.NoBias, a.NoOutBias = 2, true, true, false, false
}

func readGPTOSS(c *Config, a *Model) {
	c.decoder(a, 8, false)
	if !c.Flag("attention_bias", true) {
		c.Unknown("attention_bias", "false")
	}
	c.Windows(a, 128, each(2))
	c.Number(&a.HeadSize, "head_dim", 64)
	c.mixture(a, "num_local_experts", 128, 4)
}

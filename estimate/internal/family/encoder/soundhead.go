package encoder

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// soundHeads are the ends of the names of classes with a head.
type soundHeads []string

// The classes of wav2vec 2.0 and its successors.
const (
	forCTC     = "ForCTC"
	forSounds  = "ForSequenceClassification"
	forFrames  = "ForAudioFrameClassification"
	forVoices  = "ForXVector"
	forSamples = "ForPreTraining"
)

var (
	someSoundHeads = soundHeads{forCTC, forSounds}
	mostSoundHeads = soundHeads{forCTC, forSounds, forFrames, forVoices} // none for pretraining
	allSoundHeads  = soundHeads{forCTC, forSounds, forFrames, forVoices, forSamples}
)

// soundHead is what follows the body.
type soundHead struct {
	head              string // the end of the class's name; empty for none
	projection        int    // width before a classifier of whole sounds
	tdnn              tdnn
	codes             codebooks
	weighted          weightedSum
	clusters, classes int // of pretraining: of UniSpeech-SAT and of UniSpeech
}

// tdnn are the convolutions before a vector of a voice, and its width.
type tdnn struct {
	widths, kernels, dilations []int
	out                        int
}

// codebooks are those to which pretraining maps vectors.
type codebooks struct{ groups, each, width, projected int }

// readHead reads which class the model is, and the numbers of its head.
func (s *sounds) readHead(c *family.Config, a *family.Model) {
	var classes []string
	for _, end := range s.heads {
		classes = append(classes, c.Named(end))
	}
	class := c.Class(classes...)
	if a.NoHead = class == c.Base; a.NoHead {
		return
	}
	s.head = s.heads[max(0, slices.Index(classes, class))]
	if s.adapter.layers > 0 && (s.head == forSounds || s.head == forFrames) {
		c.Unknown("add_adapter", "true")
	}
	switch s.head {
	case forSounds:
		c.Number(&s.projection, "classifier_proj_size", 256)
	case forVoices:
		s.tdnn = tdnn{widths: c.List("tdnn_dim"), kernels: c.List("tdnn_kernel"), dilations: c.List("tdnn_dilation")}
		c.Number(&s.tdnn.out, "xvector_output_dim", 512)
		if n := len(s.tdnn.widths); n == 0 || n > family.MaxBlocks || len(s.tdnn.kernels) < n || len(s.tdnn.dilations) < n {
			c.Fail("tdnn_dim, tdnn_kernel, tdnn_dilation", "they are not lists of one length")
			s.tdnn = tdnn{widths: []int{1}, kernels: []int{1}, dilations: []int{1}, out: 1}
		}
	case forSamples:
		c.Number(&s.codes.groups, "num_codevector_groups", 2)
		c.Number(&s.codes.each, "num_codevectors_per_group", 320)
		c.Number(&s.codes.width, "codevector_dim", 256)
		c.Number(&s.codes.projected, "proj_codevector_dim", 256)
		c.Number(&s.clusters, "num_clusters", 504)
		c.Number(&s.classes, "num_ctc_classes", 80)
	}
	if s.head != forCTC && s.head != forSamples {
		a.Classes = c.Labels()
		if c.Flag("use_weighted_layer_sum", false) {
			s.weighted = weightedSum{a.Blocks + 1}
		}
	}
}

// headed returns the body and its head.
func (s *sounds) headed(c family.Transformer, body tape.Layer) []tape.Layer {
	layers := []tape.Layer{body}
	if s.weighted.states > 0 {
		layers = append(layers, tape.Inline(s.weighted))
	}
	width := setting.Or(s.adapter.width, c.Hidden)
	switch s.head {
	case forSounds:
		return append(layers, tape.As("projector", layer.Linear{In: c.Hidden, Out: s.projection}), tape.Inline(meanTime{}), tape.As("classifier", layer.Linear{In: s.projection, Out: c.Classes}))
	case forFrames:
		return append(layers, tape.As("classifier", layer.Linear{In: c.Hidden, Out: c.Classes}))
	case forVoices:
		return append(layers, s.tdnn.layers(c, width)...)
	case forSamples:
		return append(layers, s.pretrained(c, s)...)
	}
	return append(layers, tape.Inline(dropoutOf(s.last)), tape.As("lm_head", layer.NoOutput{Linear: layer.Linear{In: width, Out: c.Vocab}}))
}

// layers returns what makes a vector of a voice. A TDNN is a convolution whose weight is stored as
// that of a Linear. The loss has a weight of its own.
func (n tdnn) layers(c family.Transformer, width int) []tape.Layer {
	var convs tape.Sequential
	in := n.widths[0]
	for i, out := range n.widths {
		convs = append(convs, tape.Sequential{tape.As("kernel", layer.Conv1d{In: in, Out: out, Kernel: n.kernels[i], Dilation: n.dilations[i]}), tape.Inline(layer.ReLU{})})
		in = out
	}
	return []tape.Layer{
		tape.As("projector", layer.Linear{In: width, Out: n.widths[0]}), tape.Inline(tape.Permute{0, 2, 1}), tape.As("tdnn", convs), tape.Inline(meanAndDeviation{}),
		tape.As("feature_extractor", layer.Linear{In: 2 * min(in, setting.MaxField/2), Out: n.out}), tape.As("classifier", layer.Linear{In: n.out, Out: n.out}),
		tape.As("objective", family.Held{Layer: layer.Learned{Name: "weight", Shape: alloc.Shape{n.out, c.Classes}}}),
	}
}

// singles is a parameter that is float32 whatever the model's type (torch.FloatTensor), and does not run.
type singles struct {
	name  string
	shape alloc.Shape
}

func (l singles) Declare(d *tape.Declaration) {
	d.Add(tape.Param{Name: l.name, Shape: l.shape, DType: alloc.Float32})
}

func (singles) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

// quantizer returns the codebooks and the projection to them. What reads a model for its vectors does not run them.
func (b codebooks) quantizer(width int) tape.Layer {
	all := setting.Product(b.groups, b.each)
	return tape.As("quantizer", family.Held{Layer: tape.Sequential{
		tape.Inline(singles{"codevectors", alloc.Shape{1, all, b.width / max(1, b.groups)}}),
		tape.As("weight_proj", layer.Linear{In: width, Out: all}),
	}})
}

func wav2vec2Pretraining(c family.Transformer, s *sounds) []tape.Layer {
	return []tape.Layer{
		s.codes.quantizer(s.widths[len(s.widths)-1]),
		tape.As("project_q", family.Held{Layer: layer.Linear{In: s.codes.width, Out: s.codes.projected}}),
		tape.As("project_hid", layer.Linear{In: c.Hidden, Out: s.codes.projected}),
	}
}

// weightedSum adds up the output of all blocks and what the first reads, each times a learned number.
type weightedSum struct{ states int }

// collected holds what a weightedSum adds up.
var collected tape.Slot[[]tape.Tensor]

// collect returns a layer that notes its input for the sum.
func (w weightedSum) collect() tape.Layer {
	if w.states == 0 {
		return tape.Identity{}
	}
	return collector{}
}

type collector struct{}

func (collector) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	all := collected.Of(t)
	*all = append(*all, x)
	return x
}

func (w weightedSum) Declare(d *tape.Declaration) { d.Param("layer_weights", w.states) }

func (w weightedSum) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	shape := alloc.Shape{x.Dim(0), w.states, x.Dim(1), x.Dim(2)}
	all := t.Op(tape.Op{In: append(slices.Clone(*collected.Of(t)), x), Shape: shape})
	all = t.Op(tape.Op{In: []tape.Tensor{all}, Shape: shape, Params: true, Keep: []tape.Tensor{all}, KeepOwn: []tape.Own{{Shape: alloc.Shape{w.states}}}})
	return t.Op(tape.Op{In: []tape.Tensor{all}, Shape: x.Shape})
}

// meanTime is the mean over the length.
type meanTime struct{}

func (meanTime) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Dim(0), x.Dim(2)}})
}

// meanAndDeviation joins the means over the length and the deviations from them.
type meanAndDeviation struct{}

func (meanAndDeviation) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, channels, length)")
	one := alloc.Shape{x.Dim(0), x.Dim(1)}
	mean := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: one})
	deviation := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: one, Keep: []tape.Tensor{x}, KeepOutput: true})
	return t.Cat(1, mean, deviation)
}

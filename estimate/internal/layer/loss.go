package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type CrossEntropy nn.CrossEntropy

// NextToken is nn.NextToken. Shifts says that the logits are copied without each text's last token, whatever the version of
// transformers, as in loops that are not its own.
type NextToken struct{ Fused, Shifts bool }

type MSE struct{}

type L1 struct{}

type BCEWithLogits struct{}

func (l CrossEntropy) Declare(d *tape.Declaration) { d.Want("Dim", l.Dim, 0) }

func (l CrossEntropy) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	Judge(t, x)
	if len(x.Shape) < 2 || l.Dim >= len(x.Shape) {
		t.Failf("input %v has no classes: want (batch, ..., classes), or those in dimension Dim", x.Shape)
	}
	dim := setting.Or(l.Dim, len(x.Shape)-1)
	target := t.Const(alloc.Int64, slices.Delete(slices.Clone(x.Shape), dim, dim+1)...)
	log := keepLogSoftmax(t, x)
	return t.Op(tape.Op{
		In: []tape.Tensor{log, target}, Shape: alloc.Shape{}, Keep: []tape.Tensor{target},
		KeepOwn: []tape.Own{{Shape: alloc.Shape{}}}, // the total weight of the targets
	})
}

func (l NextToken) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if !l.Replaces(t) {
		Judge(t, x)
	}
	t.Rank(x, 3, "(batch, length, words)")
	if l.Fused {
		return l.of(t, x)
	}
	wide := l.widened(t, x)
	Judge(t, wide)
	if !l.Shifts && !t.Cfg.ShiftsLogits() {
		loss := CrossEntropy{}.Forward(t, wide)
		t.Hold(wide) // a variable of the function holds it
		return loss
	}
	shape := slices.Clone(wide.Shape)
	shape[1] = max(1, shape[1]-1)
	shifted := t.Op(tape.Op{In: []tape.Tensor{wide}, Shape: shape})
	loss := CrossEntropy{}.Forward(t, shifted)
	t.Hold(wide) // variables of the function hold both
	t.Hold(shifted)
	return loss
}

// Replaces reports whether the caller drops the logits once it has their float32 copy, because the
// model itself made the copy.
func (l NextToken) Replaces(t *tape.Tape) bool {
	return !l.Fused && t.Cfg.WidensLogits() && !*rawLogits.Of(t)
}

// widened returns the logits in the element type of the loss.
func (l NextToken) widened(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if t.Cfg.WidensLogits() && *rawLogits.Of(t) || x.DType == alloc.Float32 {
		return x
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, DType: alloc.Float32})
}

// rawLogits says that the model did not convert its logits to float32 even before ForCausalLMLoss
// did.
var rawLogits tape.Slot[bool]

// Headed returns an output head and its logits. Raw means that the model never converted them to
// float32 itself.
func Headed(head tape.Named, raw bool) []tape.Layer {
	if l, ok := head.Layer.(Linear); ok {
		head.Layer = Output{l}
	}
	return []tape.Layer{tape.Inline(lastToken{}), head, tape.Inline(Logits{Raw: raw})}
}

// lastToken keeps only the last token of each text, where no other needs logits.
type lastToken struct{}

func (lastToken) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) != 3 || !t.Cfg.LastLogits() {
		return x
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: t.Resized(x.Shape, 1, x.Shape[2]), View: true})
}

// Logits stands for the output of a head, as older models returned it.
type Logits struct{ Raw bool }

// Forward casts to float32 if the model did so and no loss will.
func (l Logits) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	*rawLogits.Of(t) = l.Raw
	if l.Raw || t.Cfg.Cache == nil || t.Cfg.Training || !t.Cfg.WidensLogits() || x.DType == alloc.Float32 {
		return x
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, DType: alloc.Float32})
}

// of records the loss of logits against the next tokens.
func (l NextToken) of(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if !l.Fused {
		x := l.widened(t, x)
		return CrossEntropy{}.Forward(t, x)
	}
	target := t.Const(alloc.Int64, x.Shape[:2]...)
	return t.Op(tape.Op{
		In: []tape.Tensor{x, target}, Shape: alloc.Shape{}, DType: alloc.Float32, Keep: []tape.Tensor{x, target},
		KeepOwn: []tape.Own{{Shape: target.Shape, DType: alloc.Float32}, {Shape: target.Shape, DType: alloc.Float32}},
	})
}

func (MSE) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return against(t, x) }

func (BCEWithLogits) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return against(t, x) }

func (L1) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	Judge(t, x)
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{}, KeepOwn: []tape.Own{{Shape: x.Shape}}})
}

// MaskedPixels is the loss of models that predict the pixels of masked patches: the mean of the absolute differences in
// these. What the masks keep where the patches are embedded counts here, since only a model with a loss is given masks.
type MaskedPixels struct{ Image, Patch, Channels int } // pixels along a side

func (l MaskedPixels) Declare(d *tape.Declaration) {
	d.Want("Image", l.Image, 1)
	d.Want("Patch", l.Patch, 1)
	d.Want("Channels", l.Channels, 1)
}

func (l MaskedPixels) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	Judge(t, x)
	batch, side := x.Dim(0), l.Image/max(1, l.Patch)
	if made, want := setting.FLOPs(x.Shape[1:]...), setting.FLOPs(l.Channels, l.Image, l.Image); made != want {
		t.Failf("the head makes %d values of an image that has %d", made, want)
	}
	factors := tape.Own{Shape: alloc.Shape{batch, setting.Product(side, side)}} // of the patches, and of what replaces the masked ones
	difference := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, KeepOwn: []tape.Own{factors, factors}})
	loss := t.Op(tape.Op{In: []tape.Tensor{difference}, Shape: x.Shape, Keep: []tape.Tensor{difference}})
	mask := tape.Own{Shape: alloc.Shape{batch, 1, l.Image, l.Image}, DType: alloc.Bool}
	masked := t.Op(tape.Op{In: []tape.Tensor{loss}, Shape: x.Shape, KeepOwn: []tape.Own{mask}})
	t.Hold(loss) // a variable of the function holds it
	return t.Op(tape.Op{In: []tape.Tensor{masked}, Shape: alloc.Shape{}, KeepOwn: []tape.Own{{Shape: alloc.Shape{}}}})
}

// Judge notes the tensors that a loss reads: the loop's code has them as the model's output.
func Judge(t *tape.Tape, xs ...tape.Tensor) {
	if t.Answer != nil {
		return
	}
	for _, x := range xs {
		t.Answer = append(t.Answer, t.Home(x.Storage()))
	}
}

// JudgeLast notes what the model's last layer reads, for a loss of the caller's own.
func JudgeLast(t *tape.Tape) {
	first := len(t.Ops) - 1
	for first > 0 && t.Ops[first-1].Row == t.Ops[first].Row {
		first--
	}
	if first >= 0 {
		t.Answer = []int32{t.Refs[t.Ops[first].In]}
	}
}

// against records a loss that keeps the input and a target of the same shape.
func against(t *tape.Tape, x tape.Tensor) tape.Tensor {
	Judge(t, x)
	target := t.Const(x.DType, x.Shape...)
	return t.Op(tape.Op{In: []tape.Tensor{x, target}, Shape: alloc.Shape{}, Keep: []tape.Tensor{x, target}})
}

// HeadLoss is an output head together with the loss of its logits, for long texts and large
// vocabularies. It divides the tokens into Chunks, so that only a part of the logits is copied at a
// time (torchtune's CEWithChunkedOutputLoss, litgpt's chunked_cross_entropy). It replaces the
// model's own head: leave that out, or use WithLoss.
type HeadLoss struct {
	Linear
	Chunks int       // 4096 at most; 0 means 1
	Loss   NextToken // of each chunk; the targets are shifted, not the logits
	// InForward computes the gradients together with the loss, so that only one chunk of logits
	// exists at a time (liger_kernel's LigerFusedLinearCrossEntropyFunction). Without Chunks, they are as long as Liger
	// makes them.
	InForward     bool
	EachBackward  bool // as in nn.NextToken
	NoLogits      bool
	WideGradients bool
}

func (HeadLoss) Kind() string { return "HeadLoss" }

func (l HeadLoss) Declare(d *tape.Declaration) {
	if l.Linear == (Linear{}) {
		d.Failf("a loss with Chunks, InForward, EachBackward or NoLogits takes the place of the head: leave it to the option WithLoss")
	}
	d.Want("Chunks", l.Chunks, 0)
	if l.Chunks > maxChunks {
		d.Failf("Chunks is %d: want %d at most", l.Chunks, maxChunks)
	}
	l.Linear.Declare(d)
}

// maxChunks bounds HeadLoss.Chunks.
const maxChunks = 1 << 12

func (l HeadLoss) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, features)")
	t.Width(x, -1, l.In, "features")
	switch {
	case l.InForward:
		return l.atOnce(t, x)
	case l.EachBackward:
		return l.oneByOne(t, x)
	case l.NoLogits:
		return l.tiled(t, x)
	}
	logits := l.logits(t, x)
	Judge(t, logits...)
	var sum tape.Tensor
	for i, part := range logits {
		loss := l.Loss.of(t, part)
		if i > 0 {
			loss = t.Op(tape.Op{In: []tape.Tensor{sum, loss}, Shape: loss.Shape, PassGrad: true})
		}
		sum = loss
	}
	for _, part := range logits { // the list of chunks lives until all losses are computed
		t.Hold(part)
	}
	return sum
}

// logits returns the logits of all chunks, which exist before the first loss. Each makes a gradient
// of the weight, which is added to the others'.
func (l HeadLoss) logits(t *tape.Tape, x tape.Tensor) []tape.Tensor {
	x = tape.Gathered(t, x)
	length := x.Shape[1]
	each := (length-1)/max(1, min(l.Chunks, length)) + 1
	var all []tape.Tensor
	for begin := 0; begin < length; begin += each {
		part := slices.Clone(x.Shape)
		part[1] = min(each, length-begin)
		chunk := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: part, View: true})
		chunk = l.Linear.Forward(t, chunk)
		if t.Learns() && each < length {
			t.Ops[len(t.Ops)-1].Backward += int64(2 * t.Whole(alloc.Shape{l.Out, l.In}, t.Computes()))
		}
		all = append(all, chunk)
	}
	return all
}

// atOnce records a loss that computes its gradients too: beside one chunk of logits there are the
// gradients of x and of the weight.
func (l HeadLoss) atOnce(t *tape.Tape, x tape.Tensor) tape.Tensor {
	o, tokens := l.joined(t, x)
	o.ForwardWorkspace += t.Size(o.In[0]) + t.Whole(alloc.Shape{l.chunk(tokens), l.Out}, t.Computes())
	if t.Learns() {
		o.ForwardWorkspace += t.Whole(alloc.Shape{l.Out, l.In}, t.Computes())
	}
	return t.Op(o)
}

// joined begins the operation of a head and its loss, and returns the number of tokens.
func (l HeadLoss) joined(t *tape.Tape, x tape.Tensor) (o tape.Op, tokens int) {
	Ran.Of(t).Multiplies = true
	x = t.Lower(tape.Gathered(t, x))
	tokens = int(min(setting.FLOPs(x.Shape[:2]...), setting.MaxField))
	o = tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{}, DType: alloc.Float32, Params: true, FLOPs: setting.Flops(alloc.Shape{tokens, l.Out}, l.In, 6)}
	t.Cast(&o, l.Out, l.In)
	return o, tokens
}

// usualChunks is the number of chunks of a loss with EachBackward that has none of its own: torchtitan's default.
const usualChunks = 8

// oneByOne records a loss whose chunks run backward one after another. The most is in use at the end of the first or
// in the second chunk: of the logits there are their own type, the logarithms of the probabilities, and two gradients
// in float32; or, when the weight's gradient is made, the logits and their gradient with two gradients of the weight.
func (l HeadLoss) oneByOne(t *tape.Tape, x tape.Tensor) tape.Tensor {
	o, tokens := l.joined(t, x)
	chunks := min(setting.Or(l.Chunks, usualChunks), x.Shape[1])
	logits := alloc.Shape{x.Shape[0] * ((x.Shape[1]-1)/max(1, chunks) + 1), l.Out}
	narrow, wide := t.Whole(logits, t.Computes()), t.Whole(logits, alloc.Float32)
	weight := alloc.Bytes(0)
	if t.Learns() {
		weight = t.Whole(alloc.Shape{l.Out, l.In}, t.Computes())
	}
	before := alloc.Bytes(0) // the weight's gradient of the chunks before
	if chunks > 1 {
		before = weight
	}
	losses := narrow + 3*wide + before
	if l.Loss.Fused { // keeps no logarithms, and makes the gradient in the logits' type
		losses = 2*narrow + before
	}
	o.ForwardWorkspace += t.Size(o.In[0]) + max(losses, 2*narrow+before+weight)
	if x.Shape[0] > 1 { // the chunks of several texts are copies
		o.ForwardWorkspace += t.Size(o.In[0])
	}
	sums, _ := alloc.Shape{tokens, l.In}.Bytes(alloc.Float32)
	o.ForwardWorkspace += sums
	return t.Op(o)
}

// tiled records a loss that holds no logits. It keeps the logarithm of each token's sum.
func (l HeadLoss) tiled(t *tape.Tape, x tape.Tensor) tape.Tensor {
	o, tokens := l.joined(t, x)
	target := t.Const(alloc.Int64, x.Shape[:2]...)
	o.In = append(o.In, target)
	o.Keep = slices.Clone(o.In)
	o.KeepOwn = append(o.KeepOwn, tape.Own{Shape: alloc.Shape{tokens}, DType: alloc.Float32})
	if l.WideGradients {
		sums, _ := alloc.Shape{tokens, l.In}.Bytes(alloc.Float32)
		o.BackwardWorkspace += sums
		if t.Learns() {
			o.BackwardWorkspace += t.Whole(alloc.Shape{l.Out, l.In}, alloc.Float32)
		}
	}
	return t.Op(o)
}

// chunk returns the number of tokens in a chunk. Liger's is a power of two, with logits about as
// large as x (ops/fused_linear_cross_entropy.py).
func (l HeadLoss) chunk(tokens int) int {
	if l.Chunks > 0 {
		return (tokens-1)/l.Chunks + 1
	}
	parts := (l.Out-1)/l.In + 1
	chunk, most := 1, (tokens-1)/parts+1
	for chunk < most && chunk < setting.MaxField/2 {
		chunk *= 2
	}
	return min(chunk, tokens)
}

type NLL struct{}

type Huber struct{}

type KLDiv struct{}

type CTC nn.CTC

func (l CTC) Declare(d *tape.Declaration) { d.Want("the number of letters", int(l), 1) }

func (NLL) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	Judge(t, x)
	t.Rank(x, 2, "(batch, classes)")
	target := t.Const(alloc.Int64, x.Shape[0])
	return t.Op(tape.Op{In: []tape.Tensor{x, target}, Shape: alloc.Shape{}, Keep: []tape.Tensor{x, target}, KeepOwn: []tape.Own{{Shape: alloc.Shape{}}}})
}

func (Huber) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return against(t, x) }

func (KLDiv) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	Judge(t, x)
	target := t.Const(x.DType, x.Shape...)
	product := t.Op(tape.Op{In: []tape.Tensor{x, target}, Shape: x.Shape, Keep: []tape.Tensor{target}})
	return t.Op(tape.Op{In: []tape.Tensor{product}, Shape: alloc.Shape{}})
}

func (l CTC) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	Judge(t, x)
	t.Rank(x, 3, "(steps, batch, letters)")
	batch := x.Shape[1]
	text := t.Const(alloc.Int64, batch, int(l))
	each := tape.Own{Shape: alloc.Shape{batch}}
	return t.Op(tape.Op{
		In: []tape.Tensor{x, text}, Shape: alloc.Shape{}, Keep: []tape.Tensor{x, text},
		KeepOwn: []tape.Own{each, each, {Shape: alloc.Shape{batch, x.Shape[0], 2*min(int(l), setting.MaxField) + 1}}}, // losses, lengths, alphas
	})
}

package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// HeadLoss is an output head together with the loss of its logits, for long texts and large
// vocabularies. It divides the tokens into Chunks, so that only a part of the logits is copied at a
// time (torchtune's CEWithChunkedOutputLoss, litgpt's chunked_cross_entropy). It replaces the
// model's own head: leave that out, or use WithLoss.
type HeadLoss struct {
	Linear
	Chunks int       // 4096 at most; 0 means 1
	Loss   NextToken // of each chunk; the targets are shifted, not the logits
	// InForward computes the gradients together with the loss, so that only one chunk of logits
	// exists at a time (liger_kernel's LigerFusedLinearCrossEntropyFunction, Apple's
	// cut_cross_entropy). Without Chunks, they are as long as Liger makes them.
	InForward bool
}

func (HeadLoss) Kind() string { return "HeadLoss" }

func (l HeadLoss) Declare(d *tape.Declaration) {
	if l.Linear == (Linear{}) {
		d.Failf("a loss with Chunks or InForward takes the place of the head: leave it to the option WithLoss")
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
	if l.InForward {
		return l.atOnce(t, x)
	}
	logits := l.logits(t, x)
	judge(t, logits...)
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
	Ran.Of(t).Multiplies = true
	x = t.Lower(x)
	tokens := int(min(setting.FLOPs(x.Shape[:2]...), setting.MaxField))
	o := tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{}, DType: alloc.Float32, Params: true, FLOPs: setting.Flops(alloc.Shape{tokens, l.Out}, l.In, 6)}
	t.Cast(&o, l.Out, l.In)
	o.Workspace += t.Size(x) + t.Whole(alloc.Shape{l.chunk(tokens), l.Out}, t.Computes())
	if t.Learns() {
		o.Workspace += t.Whole(alloc.Shape{l.Out, l.In}, t.Computes())
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

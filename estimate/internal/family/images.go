package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Prompt is what a tower reads with each text, such as its images.
type Prompt struct {
	Count         int // images of each text
	Width, Height int // of each image, in pixels
	Tokens        int // of each text that stand for its images, as the processor counts them
	Sized         bool
	Shape         []int // of what the tower reads of one text's images
}

// Look is what a processor makes of one image: the tokens that stand for it in the text, and the
// shape of what the tower reads. The first dimension of that shape counts what several images have
// one after another, such as tiles or patches.
type Look struct {
	Tokens int
	Sized  bool // they depend on the image's size
	Shape  []int
}

// merged runs a tower over the model's second input, one part after another, and puts its vectors in
// the place of the tokens that stand for them (Tensor.masked_scatter, in the models' forward).
type merged struct {
	tower  tape.Sequential
	masked bool // the text's attention gets a mask
}

func (l merged) Declare(d *tape.Declaration) { l.tower.Declare(d) }

func (l merged) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	images := t.Input(1)
	if len(images.Shape) < 3 {
		t.Failf("the images %v have too few dimensions: want (batch, images, ...)", images.Shape)
	}
	vectors := layer.Encode(t, func() tape.Tensor {
		// The dimension of the batch is there for the estimate alone: in one tensor all images follow each other.
		return l.tower.Forward(t, t.View(images, append([]int{-1}, images.Shape[2:]...)...))
	})
	t.Width(vectors, -1, x.Dim(-1), "elements in a vector")
	mask := t.Const(alloc.Bool, x.Dim(0), x.Dim(1))
	o := tape.Op{In: []tape.Tensor{x, vectors}, Shape: x.Shape, Keep: []tape.Tensor{mask}}
	o.Workspace, o.BackwardWorkspace = scattering(t, x, vectors)
	Return(t, vectors, mask)
	stacked.Of(t).mask = mask
	if l.masked {
		Return(t, t.Const(alloc.Bool, x.Dim(0), 1, x.Dim(1), x.Dim(1)))
	}
	return t.Op(o)
}

// Listed joins the vectors that a tower returns in a list, with one tensor for each image.
var Listed = tape.Inline(listed{})

type listed struct{}

func (listed) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	Return(t, x)
	return t.Cat(0, t.View(x, -1, x.Dim(-1)))
}

// deepstack has vectors of the images that blocks of the text add to their outputs, at the places of the
// images' tokens: the first block the first of them, and so on (DeepStack, arXiv:2406.04334).
type deepstack struct {
	vectors []tape.Tensor
	mask    tape.Tensor // of the images' tokens
}

var stacked tape.Slot[deepstack]

// Deepen notes that the text's next block without such vectors adds these.
func Deepen(t *tape.Tape, vectors tape.Tensor) {
	s := stacked.Of(t)
	s.vectors = append(s.vectors, vectors)
	Return(t, vectors)
}

// deepened adds the vectors of the images that belong to a block to the block's output (modeling_qwen3_vl.py,
// _deepstack_process).
func deepened(t *tape.Tape, block int, x tape.Tensor) tape.Tensor {
	s := stacked.Of(t)
	if block >= len(s.vectors) {
		return x
	}
	vectors, mask := s.vectors[block], []tape.Tensor{s.mask}
	x = t.Copy(x)
	chosen := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: vectors.Shape, Keep: mask})
	return t.Op(tape.Op{In: []tape.Tensor{x, t.Add(chosen, vectors)}, Shape: x.Shape, InPlace: true, Keep: mask})
}

// scattering returns the workspaces of masked_scatter and of its backward pass, which selects from
// the gradient. CUDA spreads the mask over the elements and sums it up, and lists the indices of the
// elements that are selected; the CPU sums up a copy of the mask as well, unless there are few elements
// (ATen, native/cuda/IndexKernel.cpp and native/TensorAdvancedIndexing.cpp).
func scattering(t *tape.Tape, x, vectors tape.Tensor) (forward, backward alloc.Bytes) {
	const number, few = 8, 1 << 15
	all, _ := x.Shape.Elements()
	selected, _ := vectors.Shape.Elements()
	switch {
	case t.On() == setting.CUDA:
		return alloc.Bytes(min(all, setting.MaxTotal/16)) * (number + 1), alloc.Bytes(min(selected, setting.MaxTotal/64)) * 3 * number
	case all < few:
		return 0, 0
	}
	return 0, alloc.Bytes(min(all, setting.MaxTotal/32)) * 2 * number
}

// returned are tensors that the model returns beside its output, such as what a tower made of the
// images. They live at least until the forward pass is over.
type returned struct{ all []tape.Tensor }

// Lasting returns these tensors.
func (r *returned) Lasting() []tape.Tensor { return r.all }

var returns tape.Slot[returned]

// Return notes that the model returns these tensors beside its output, or holds them until it does.
func Return(t *tape.Tape, xs ...tape.Tensor) {
	r := returns.Of(t)
	r.all = append(r.all, xs...)
}

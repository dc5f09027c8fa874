package family

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Prompt is what a tower reads with each text: images or sounds of one size.
type Prompt struct {
	Count int // images or sounds of each text
	Size      // of each
	Look      // its Tokens and Vectors are those of all that a text has
}

// Each returns how many tokens stand for one of them.
func (p *Prompt) Each() int {
	if p == nil {
		return 0
	}
	return p.Tokens / max(1, p.Count)
}

// Size is that of an image as it is given, or of a sound.
type Size struct {
	Width, Height int     // of an image, in pixels
	Seconds       float64 // of a sound
}

// String returns the size as an error shows it.
func (s Size) String() string {
	if s.Seconds > 0 {
		return fmt.Sprintf("%v seconds", s.Seconds)
	}
	return fmt.Sprintf("%d x %d", s.Width, s.Height)
}

// Look is what a processor makes of an image or a sound: the tokens that stand for it in the text, and what the tower
// reads.
type Look struct {
	Tokens int
	Sized  bool // they depend on the size
	// Vectors that blocks of the text read beside the text, each of which has a place in their caches.
	Vectors int
	// Inputs returns what the tower reads with a batch of texts of this length, of which each has count images or sounds.
	// The first dimension of each is the batch, and the second of the first input counts what follows each other.
	Inputs func(batch, length, count int) []Input
}

// Unfit says why no image or sound, of whatever size, runs through a model of some config.json.
type Unfit string

func (e Unfit) Error() string { return string(e) }

// Joined returns the Inputs of a tower that reads one tensor of numbers, in which what becomes of several images follows
// each other. dims are those of one image's: the first counts its tiles or patches.
func Joined(dims ...int) func(batch, length, count int) []Input {
	return func(batch, _, count int) []Input {
		return []Input{Reals(append([]int{batch, setting.Product(count, dims[0])}, dims[1:]...)...)}
	}
}

// running is a tower that runs over some of the model's inputs, one part after another.
type running struct {
	tape.Sequential
	first, inputs int // of the model's inputs, the first that it reads and their number
}

// towerInputs are what the tower that runs reads.
var towerInputs tape.Slot[[]tape.Tensor]

// TowerInput returns input i of the tower that runs. It reads input 0 anyway, with the images of all texts in one dimension.
func TowerInput(t *tape.Tape, i int) tape.Tensor {
	if inputs := *towerInputs.Of(t); i >= 0 && i < len(inputs) {
		return inputs[i]
	}
	t.Failf("the tower has no input %d", i)
	return tape.Tensor{}
}

// run returns what the tower makes of its inputs.
func (l running) run(t *tape.Tape) tape.Tensor {
	inputs := make([]tape.Tensor, l.inputs)
	for i := range inputs {
		inputs[i] = t.Input(l.first + i)
	}
	x := t.Input(l.first)
	if len(x.Shape) < 3 {
		t.Failf("the input %v of a tower has too few dimensions: want (batch, images, ...)", x.Shape)
	}
	*towerInputs.Of(t) = inputs
	return layer.Encode(t, func() tape.Tensor {
		// The dimension of the batch is there for the estimate alone: in one tensor all images follow each other.
		return l.Sequential.Forward(t, t.View(x, append([]int{-1}, x.Shape[2:]...)...))
	})
}

// apart gives blocks of the text what they read beside the text.
type apart struct {
	running
	beside func(t *tape.Tape, vectors tape.Tensor) []tape.Tensor
}

func (l apart) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	besideText.Of(t).all = l.beside(t, l.run(t))
	return x
}

// merged puts a tower's vectors in the place of the tokens that stand for them (Tensor.masked_scatter, in the models'
// forward).
type merged struct {
	running
	masked bool // the text's attention gets a mask
}

func (l merged) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	vectors := l.run(t)
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

// indexed puts a tower's vectors in their places by the numbers of these (Tensor.index_put).
type indexed struct{ running }

func (l indexed) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	vectors := l.run(t)
	t.Width(vectors, -1, x.Dim(-1), "elements in a vector")
	places := t.Const(alloc.Int64, vectors.Dim(0), 2) // of a text, and in it
	return t.Op(tape.Op{In: []tape.Tensor{x, vectors}, Shape: x.Shape, Keep: []tape.Tensor{places}})
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

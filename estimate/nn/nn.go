// Package nn has the layers that package estimate computes with. They are named after
// PyTorch's modules and have their defaults; the zero value of a setting is PyTorch's default.
//
//	layers := []nn.Layer{
//		nn.Conv2d{In: 3, Out: 64, Kernel: 3, Padding: 1},
//		nn.ReLU{InPlace: true},
//		nn.Flatten{},
//		nn.Linear{In: 64 * 32 * 32, Out: 10},
//	}
//
// Layers are plain values: settings and nothing else. They compute nothing and hold no memory; package
// estimate knows what each of them declares and keeps. Sequential, Repeat, Residual and Concat put
// layers together, As names them, and Share lets one stand at several places. A Module is
// a layer of your own: parts, parameters and a function, for what has two inputs or skips. A Class
// names a layer without settings, such as "GELU". Package zoo has well-known models, and package checkpoint reads model files.
//
// Layers may be used by several goroutines at once.
package nn

// Layer is a part of a model, as torch.nn.Module is in PyTorch. One layer may stand at several places
// of a model, and then has parameters of its own at each of them, unless Share says otherwise.
// Only this package has types that are layers; a Module is one of your own.
type Layer interface{ isLayer() }

// Sequential calls one layer after another. Each layer is named by its index unless As names it,
// and may read the tensors that the Sequential was given beside its input; see Flow.
type Sequential []Layer

// As gives a layer its name in the layer that holds it, where its index would stand otherwise.
func As(name string, l Layer) Layer { return named{name, l} }

// named is a layer that As made.
type named struct {
	name string
	Layer
}

// Named returns the name and the layer that As was given.
func (n named) Named() (string, Layer) { return n.name, n.Layer }

// Residual is After(Body(x) + Shortcut(x)). A Body that is a Sequential takes no name of its own: its
// parts are parts of the Residual, as the layers of a ResNet's block are.
type Residual struct {
	Body     Layer
	Shortcut Layer // nil passes x on as it is
	After    Layer // called with the sum; may be nil
}

// Concat calls each branch with the same input and joins their outputs along a dimension.
type Concat struct {
	Branches []Layer
	Dim      int // 0 means 1, the channels
}

// Repeat makes a layer that calls n copies of l one after another, each with parameters of its own,
// named "0", "1" and so on.
func Repeat(n int, l Layer) Layer { return repeated{n, l} }

// repeated is a layer that Repeat made.
type repeated struct {
	n int
	Layer
}

// Repeated returns the number and the layer that Repeat was given.
func (r repeated) Repeated() (int, Layer) { return r.n, r.Layer }

// Share makes a layer that may stand at several places of a model and has one set of parameters, which
// is counted once. Each call makes another such layer.
func Share(l Layer) Layer { return &shared{l} }

// shared is a layer that Share made. Two are the same layer if they are the same pointer.
type shared struct{ Layer }

// Shared returns the layer that Share was given.
func (s *shared) Shared() Layer { return s.Layer }

// Inline makes the parts of a layer parts of the Sequential, Residual, Concat or Module that holds it:
// the layer itself has neither a name nor a row. So are the sums of a transformer's block, whose
// norms and attention are parts of the block:
//
//	nn.Sequential{
//		nn.Inline(nn.Residual{Body: nn.Sequential{nn.As("norm1", ...), nn.As("attn", ...)}}),
//		nn.Inline(nn.Residual{Body: nn.Sequential{nn.As("norm2", ...), nn.As("mlp", ...)}}),
//	}
func Inline(l Layer) Layer { return inline{l} }

// inline is a layer that Inline made.
type inline struct{ Layer }

// Inlined returns the layer that Inline was given.
func (in inline) Inlined() Layer { return in.Layer }

// Linear is y = xW' + b over the last dimension, as torch.nn.Linear. It keeps its
// input, or the copy that it makes of one whose dimensions were permuted.
type Linear struct {
	In, Out int
	NoBias  bool
	// Tied is the path, from the root of the model, of the parameter that serves as the weight; see Param.
	Tied string
	// Split divides the layer among the devices of a tensor parallel group (arXiv:1909.08053, section 3): by "columns",
	// where each device computes a part of the outputs, or by "rows", where each reads a part of the inputs and the sum is
	// whole. Empty, each device has the whole weight.
	Split string
}

// Embedding looks up vectors by number, as torch.nn.Embedding. It keeps the numbers.
type Embedding struct {
	Num, Dim int
	Split    bool // tensor parallelism divides the table
}

// RNN is torch.nn.RNN with batch_first over (batch, length, features); it returns the output of
// every step. What recurrent layers keep is what PyTorch's own loops keep (for LSTM on the CPU,
// oneDNN); cuDNN's reserved block is assumed to be as large. The peaks of models with recurrent
// layers have wide bounds.
type RNN struct {
	In, Hidden    int
	Layers        int // 0 means 1
	Bidirectional bool
	NoBias        bool
}

// LSTM is torch.nn.LSTM with batch_first; see RNN.
type LSTM RNN

// GRU is torch.nn.GRU with batch_first; see RNN.
type GRU RNN

// Attention is multi-head attention with its projections, over (batch, length, hidden), as
// scaled_dot_product_attention computes it. On CUDA it keeps queries, keys, values, its output and
// one number for each query and head (arXiv:2205.14135, section 3.1). On the CPU, with dropout, it
// keeps the scores.
type Attention struct {
	Hidden, Heads int
	KVHeads       int     // heads of keys and values; 0 means Heads
	HeadSize      int     // 0 means Hidden / Heads
	NoBias        bool    // none of the projections has a bias
	Rotary        bool    // queries and keys are rotated by their positions
	Dropout       float64 // of the scores
	Cross         bool    // keys and values are of the first tensor beside the input, such as an encoder's output
}

// Conv2d is torch.nn.Conv2d over (batch, channels, height, width), and torch.nn.ConvTranspose2d where it is
// Transposed. Convolutions keep their input. Uneven makes one whose dimensions differ.
type Conv2d struct {
	In, Out, Kernel int
	Stride          int // 0 means 1
	Padding         int
	Dilation        int // 0 means 1
	Groups          int // 0 means 1
	NoBias          bool
	Transposed      bool
	OutputPadding   int // where it is Transposed
}

// Conv1d is torch.nn.Conv1d over (batch, channels, length), with the settings of Conv2d.
type Conv1d Conv2d

// Conv3d is torch.nn.Conv3d over (batch, channels, depth, height, width), with the settings of Conv2d.
type Conv3d Conv2d

// Uneven gives a convolution or a pooling a kernel, stride and padding for each of its dimensions. Where a list is nil, or a
// number in it is zero, what the layer has stays.
//
//	nn.Uneven(nn.Conv2d{In: 64, Out: 64}, []int{1, 7}, nil, []int{0, 3})
func Uneven(l Layer, kernel, stride, padding []int) Layer {
	return uneven{l, [3][]int{kernel, stride, padding}}
}

// uneven is a layer that Uneven made.
type uneven struct {
	Layer
	sides [3][]int
}

// Sides returns the layer that Uneven was given, with its kernels, strides and paddings.
func (u uneven) Sides() (Layer, [3][]int) { return u.Layer, u.sides }

// BatchNorm is torch.nn.BatchNorm1d, 2d and 3d, of that many features. It keeps its input and two vectors
// of statistics; its running statistics are buffers.
type BatchNorm int

// LayerNorm is torch.nn.LayerNorm over the last dimension. It keeps its input, and
// mean and deviation of each vector.
type LayerNorm struct {
	Size     int
	NoAffine bool
	NoBias   bool
}

// GroupNorm is torch.nn.GroupNorm. It keeps its input, and mean and deviation of each
// group of each sample.
type GroupNorm struct {
	Groups, Channels int
}

// InstanceNorm is torch.nn.InstanceNorm1d, 2d and 3d. It keeps its input and two numbers for each channel
// of each sample, and with Affine the weight for each of them.
type InstanceNorm struct {
	Features int
	Affine   bool
}

// LocalResponseNorm is torch.nn.LocalResponseNorm of a size over (batch, channels, ...), in elementary operations.
type LocalResponseNorm int

// RMSNorm is torch.nn.RMSNorm over the last dimension, of a size. On CUDA it keeps its input and one number a
// vector; on the CPU it keeps its normalised input besides.
type RMSNorm int

// Dropout is torch.nn.Dropout. It keeps a mask of a byte an element on CUDA, and one
// of the input's type on the CPU; in inference it does nothing.
type Dropout struct {
	P       float64 // 0 means 0.5
	InPlace bool
}

// ReLU is torch.nn.ReLU; it keeps its output. InPlace overwrites the input with it.
type ReLU struct{ InPlace bool }

// Class is a layer that has no settings, by the name of its class, as Python prints it. Those with a star may also work in
// place: Class("SiLU(inplace=True)").
//
//   - GELU, with or without the tanh approximation, keeps its input. So do SiLU*, ReLU6*, Hardswish*, Hardsigmoid* and
//     Mish*, and in place a copy of it; LeakyReLU* and ELU* keep it too, but in place their output.
//   - Sigmoid, Tanh, Softmax and LogSoftmax keep their output.
//   - Dropout1d, Dropout2d and Dropout3d drop whole channels of a sample, and keep a number for each.
//     torchvision's StochasticDepth drops whole samples, and keeps a number a sample.
//   - Identity keeps nothing.
//   - Losses, which make their own targets: MSELoss, HuberLoss, SmoothL1Loss and BCEWithLogitsLoss keep their input and the
//     target, L1Loss the difference, KLDivLoss the target, and NLLLoss, over (batch, classes), its input and the targets.
type Class string

// PReLU is torch.nn.PReLU, with that many slopes, one for all channels or one for each; 0 means 1. It keeps its input.
type PReLU int

// MaxPool is torch.nn.MaxPool1d, 2d and 3d: its input has one to three dimensions after the channels. It keeps its input,
// and the positions of the maxima in 64 bits. Uneven makes one whose dimensions differ.
type MaxPool struct {
	Kernel  int
	Stride  int // 0 means Kernel
	Padding int
	Ceil    bool
}

// AvgPool is torch.nn.AvgPool1d, 2d and 3d, with the settings of MaxPool; it keeps its input.
type AvgPool MaxPool

// AdaptiveAvgPool is torch.nn.AdaptiveAvgPool1d, 2d and 3d, for an output of that length in each dimension after the
// channels. It keeps its input, except where the output is a single number a channel: that is a mean.
type AdaptiveAvgPool int

// AdaptiveMaxPool is torch.nn.AdaptiveMaxPool1d, 2d and 3d. It keeps its input, and the positions of the
// maxima in 64 bits.
type AdaptiveMaxPool int

// Flatten is torch.nn.Flatten: all dimensions from the first on become one. The output
// is a view.
type Flatten struct {
	Start int // 0 means 1, after the batch
}

// Reshape gives its input another shape, as a view: the dimensions after the batch, which stays. One of them may be -1
// and is then computed.
type Reshape []int

// Upsample is torch.nn.Upsample, with a factor for each dimension after the channels; it keeps nothing.
type Upsample int

// PixelShuffle is torch.nn.PixelShuffle: channels become pixels, that many more each way.
type PixelShuffle int

// ZeroPad2d is torch.nn.ZeroPad2d over (batch, channels, height, width), with the pixels to add on the left, right, top
// and bottom; it keeps nothing. Numbers below zero cut pixels off.
type ZeroPad2d [4]int

// Permute puts the dimensions into another order, such as {0, 2, 3, 1}, as a view. A Linear that reads the view copies it
// first, if its rows are not one matrix in memory.
type Permute []int

// CrossEntropy is torch.nn.CrossEntropyLoss, with a number of the right class for each vector
// of logits. It keeps the logarithms of the probabilities and the targets. Losses make
// their own targets.
type CrossEntropy struct {
	// Dim is the dimension of the classes; 0 means the last, as language models have
	// it. Where each pixel of an image has a class it is 1.
	Dim int
}

// CTC is torch.nn.CTCLoss over (steps, batch, alphabet), for target texts of that many letters. It
// keeps its input, the texts, and a number for each step and each position of a text.
type CTC int

// NextToken is the loss of language models in Hugging Face's transformers
// (loss/loss_utils.py, ForCausalLMLoss): logits in float32, which copies them unless they are, and
// CrossEntropy over all tokens of each text; the copy lives until the loss is there. Of the versions that estimate.Installed
// says, those before 4.49 copy the logits once more to leave out each text's last token, and those before 4.46 have models
// that make the logits float32 themselves, or leave them as they are.
type NextToken struct {
	// Fused is a loss in one kernel, which shifts the targets in place of the logits, as
	// torch.compile, Unsloth and flash-attn make it. It keeps the logits as they are, and for each
	// token the largest, and the logarithm of the sum of their exponentials.
	Fused bool
	// Chunks computes the head and its loss together, for long texts and large vocabularies: the tokens are cut into that
	// many chunks, 4096 at most, so that only a part of the logits is copied at a time (torchtune's CEWithChunkedOutputLoss,
	// litgpt's chunked_cross_entropy). It is for estimate.WithLoss, where the loss takes the place of the model's own head.
	Chunks int
	// InForward does so and computes the gradients together with the loss, so that only one chunk of logits
	// exists at a time (liger_kernel's LigerFusedLinearCrossEntropyFunction). Without Chunks, they are as long
	// as Liger makes them.
	InForward bool
	// EachBackward runs the backward pass of each of the Chunks, 8 if there are none, right after its loss. The gradient of
	// the head's input is added up in float32 (torchtitan 0.3's components/loss.py, ChunkedLossWrapper).
	EachBackward bool
	// NoLogits computes the logits in tiles that no tensor holds, in the forward pass and again in the backward pass
	// (cut_cross_entropy 25.1's cce.py, linear_cross_entropy).
	NoLogits bool
	// WideGradients adds up the gradients of the head's input and weight in float32, beside those that it returns. With
	// NoLogits it is the head of TRL 1.16 (kernels/chunked_logprob.py).
	WideGradients bool
}

func (Sequential) isLayer() {}
func (named) isLayer()      {}
func (Residual) isLayer()   {}
func (Concat) isLayer()     {}
func (repeated) isLayer()   {}
func (*shared) isLayer()    {}
func (uneven) isLayer()     {}
func (inline) isLayer()     {}
func (Module) isLayer()     {}

func (ReLU) isLayer()              {}
func (Class) isLayer()             {}
func (PReLU) isLayer()             {}
func (Conv1d) isLayer()            {}
func (Conv2d) isLayer()            {}
func (Conv3d) isLayer()            {}
func (Dropout) isLayer()           {}
func (Linear) isLayer()            {}
func (Embedding) isLayer()         {}
func (RNN) isLayer()               {}
func (LSTM) isLayer()              {}
func (GRU) isLayer()               {}
func (Attention) isLayer()         {}
func (CrossEntropy) isLayer()      {}
func (CTC) isLayer()               {}
func (NextToken) isLayer()         {}
func (BatchNorm) isLayer()         {}
func (LayerNorm) isLayer()         {}
func (GroupNorm) isLayer()         {}
func (InstanceNorm) isLayer()      {}
func (RMSNorm) isLayer()           {}
func (LocalResponseNorm) isLayer() {}
func (MaxPool) isLayer()           {}
func (AvgPool) isLayer()           {}
func (AdaptiveAvgPool) isLayer()   {}
func (AdaptiveMaxPool) isLayer()   {}
func (Flatten) isLayer()           {}
func (Reshape) isLayer()           {}
func (Permute) isLayer()           {}
func (Upsample) isLayer()          {}
func (PixelShuffle) isLayer()      {}
func (ZeroPad2d) isLayer()         {}

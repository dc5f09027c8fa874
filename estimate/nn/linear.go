package nn

// Linear is y = xW' + b over the last dimension, as torch.nn.Linear. It keeps its
// input, or the copy that it makes of one whose dimensions were permuted.
type Linear struct {
	In, Out int
	NoBias  bool
	// Tied is the path, from the root of the model, of the parameter that serves as the weight; see Param.
	Tied string
	// Split divides the layer among the devices of a tensor parallel group (arXiv:1909.08053, section 3): by "columns",
	// where each device computes a part of the outputs, or by "rows", where each reads a part of the inputs and the sum is
	// whole. Without a word each device has the whole weight.
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
// layers have a wide band.
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

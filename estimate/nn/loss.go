package nn

// CrossEntropy is torch.nn.CrossEntropyLoss, with a number of the right class for each vector
// of logits. It keeps the logarithms of the probabilities and the targets. Losses make
// their own targets.
type CrossEntropy struct {
	// Dim is the dimension of the classes; 0 means the last, as language models have
	// it. Where each pixel of an image has a class it is 1.
	Dim int
}

// CTC is torch.nn.CTCLoss over (steps, batch, alphabet), for target texts of that many letters. It
// keeps its input, the texts, and a number for each step and each place of a text.
type CTC int

// NextToken is the loss of language models in Hugging Face's transformers
// (loss/loss_utils.py, ForCausalLMLoss): logits in float32, shifted by a token, which copies
// them, and CrossEntropy. Both copies live until the loss is there. Before transformers 4.46, which estimate.Installed says, models
// made the logits float32 themselves, or left them as they are.
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
	// exists at a time (liger_kernel's LigerFusedLinearCrossEntropyFunction, Apple's
	// cut_cross_entropy). Without Chunks, they are as long as Liger makes them.
	InForward bool
}

package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Transformer describes a transformer of one of the known families by the
// numbers that a config.json holds. Zero values that are not numbers of the
// model itself mean the family's defaults.
type Transformer struct {
	Family   Family
	Vocab    int // tokens; unused by ViT
	Hidden   int // width
	Blocks   int // number of blocks
	Heads    int // of queries
	KVHeads  int // of keys and values; 0 means Heads
	HeadSize int // 0 means Hidden / Heads
	FFN      int // width of the MLP's middle; 0 means 4 x Hidden

	Positions int // learned positions (GPT2, BERT, OPT); in RoBERTa two are padding
	Types     int // token types (BERT); 0 means 2
	RotaryDim int // elements of a head that rotate; 0 means all, and half of HeadSize is usual in Phi

	Window     int // of sliding window attention, for the key/value cache; 0 for none
	FullBlocks int // of the Blocks, those without the Window

	Experts      int // of a mixture in place of the MLP; 0 for none
	TopK         int // experts that each token visits; 0 means 2
	ExpertFFN    int // width of an expert's middle; 0 means FFN
	DenseBlocks  int // the first blocks, which have an MLP and no mixture
	SharedFFN    int // width of the MLP that each token visits besides; 0 for none
	Router       Router
	UnscaledTopK bool // the weights of a token's experts are not divided by their sum
	SharedGate   bool // a gate weighs the shared MLP (Qwen2-MoE)

	// Kinds say what is particular about each of the Blocks; nil for nothing. They take the
	// place of FullBlocks.
	Kinds []BlockKind

	// Latent is the attention in place of the usual (DeepSeek), whose Hidden and
	// Heads are the Transformer's; nil for none.
	Latent *LatentAttention

	QKNorm       QKNorm // norms of queries and keys (Llama, Gemma2)
	CappedScores bool   // attention's scores are capped by a tanh, as in Gemma 2
	CappedLogits bool   // the logits are

	QKVBias  bool // biases of the query, key and value projections (Llama, Qwen2 has them)
	Bias     bool // biases of all projections of Llama and Gemma
	Tied     bool // the head's weight is the embedding's
	HeadBias bool // of the head (PhiMoE)

	Parallel  bool // attention and MLP beside each other (StableLM, GPTNeoX, Falcon)
	TwoNorms  bool // of parallel parts, each has its own (Falcon)
	NormAfter bool // norms follow the sums (OPT)
	Alibi     bool // positions are biases of the scores in place of rotation (Falcon)
	ClipQKV   bool // queries, keys and values are bounded (OLMo)
	EmbedDim  int  // width of the embedding, with projections to Hidden and back (OPT); 0 means Hidden

	NoHead bool // the model ends at its last norm, without the head

	Activation  Activation // the zero value is the family's own
	Dropout     float64    // of embeddings, scores and residuals (GPT2, BERT, ViT, Phi); 0 for none
	HeadDropout float64    // before the classifier (DistilBERT)
	// PlainEmbeddings leaves embeddings out of the Dropout (Phi).
	PlainEmbeddings bool
	Plain           bool // attention that holds the scores, instead of flash attention
	Eager           bool // attention in elementary operations, as transformers' attn_implementation="eager" (the families from Llama to Phi3)

	Image, Patch int // ViT: side of image and patch; 0 means 224 and 16
	Channels     int // ViT: 0 means 3
	Classes      int // width of a classifier in place of the head (not GPT2); 0 for none

	MaskedLM bool // BERT: the head that tells masked tokens
	Pooler   bool // ViT: what the class token goes through; BERT has it unless NoHead

	// Vision is a SigLIP whose weights are there and whose images are not in the
	// figures, as with Gemma 3; nil for none.
	Vision *Transformer
}

// Cache describes the key/value cache, for WithKVCache.
func (c Transformer) Cache(batch, context int, d alloc.DType) KVConfig {
	latent := 0
	if c.Latent != nil {
		latent = c.Latent.KVRank + c.Latent.RopeSize
	}
	full := c.FullBlocks
	if c.Kinds != nil {
		full = 0
		for i := range min(c.Blocks, len(c.Kinds)) {
			if c.Kinds[i]&Windowed == 0 {
				full++
			}
		}
	}
	return KVConfig{
		Batch: batch, Context: context, Layers: c.Blocks, KVHeads: or(c.KVHeads, c.Heads),
		HeadSize: c.headSize(), Latent: latent, Window: c.Window, Full: full, DType: d,
	}
}

func (c Transformer) headSize() int {
	if c.HeadSize != 0 || c.Heads == 0 {
		return c.HeadSize
	}
	return c.Hidden / c.Heads
}

// dropout is the layer for the configured dropout.
func (c Transformer) dropout() Layer {
	if c.Dropout == 0 {
		return Identity{}
	}
	return Dropout{P: c.Dropout}
}

// Family is how a Transformer is put together, and how its modules are named:
// as Hugging Face's transformers do.
type Family uint8

// The families. Mistral, Mixtral, Qwen2 and Qwen3 are Llama with a Window, Experts,
// QKVBias or QKNorm, and Gemma 3 is Gemma2 with QKNorm.
const (
	Llama      Family = iota // RMSNorm before each part, rotary positions, gated MLP, no biases
	Gemma                    // Llama with scaled norms
	Gemma2                   // Gemma with norms before and after each part
	OLMo2                    // Llama with norms after each part, and of queries and keys
	GPTOSS                   // Llama with a mixture, attention sinks and biases
	Phi                      // attention and MLP beside each other, LayerNorm, partly rotary, biases (phi-1, phi-2)
	Phi3                     // Llama with packed projections
	GLM                      // Llama with packed gates and partly rotary
	GLM4                     // GLM with norms before and after each part
	Granite                  // Llama with constant factors
	Cohere                   // attention and MLP beside each other, LayerNorm without biases, gated MLP (Command R)
	Starcoder2               // LayerNorm, biases, an MLP without a gate
	StableLM                 // LayerNorm, partly rotary, gated MLP
	OLMo                     // LayerNorm without weights, gated MLP
	Nemotron                 // LayerNorm with shifted weights, squared ReLU
	PhiMoE                   // LayerNorm and a mixture
	GPTNeoX                  // LayerNorm, partly rotary, packed projections, biases
	Falcon                   // LayerNorm, packed projections, few keys and values
	Bloom                    // LayerNorm, biases of scores in place of rotation, packed projections
	OPT                      // LayerNorm, learned positions, ReLU
	GPT2                     // LayerNorm before each part, learned positions, biases, packed projections
	BERT                     // LayerNorm after each part, learned positions and token types, pooler
	RoBERTa                  // BERT with positions from the padding on, and heads of its own
	DistilBERT               // BERT without token types and pooler
	ViT                      // image patches, class token, learned positions, classifier
)

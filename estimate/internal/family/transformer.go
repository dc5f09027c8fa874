package family

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// BlockKind says in what a block of a Transformer differs from the others.
type BlockKind uint8

// What may be particular about a block; a block can have several.
const (
	Windowed   BlockKind = 1 << iota // it attends within the Window alone
	NoRotation                       // it does not rotate queries and keys
	Recurrent                        // it has what the family has in place of attention
	Sparse                           // it has the mixture; where no block is marked so, all beyond DenseBlocks have
	Borrowing                        // its keys and values are those of the last block before that is of its kind, with or without a window
	Thinned                          // few elements of the MLP's middle are not 0
)

// Kind is that of a block.
func (c Transformer) Kind(block int) BlockKind {
	if block < len(c.Kinds) {
		return c.Kinds[block]
	}
	if c.Kinds == nil && c.Window > 0 && c.FullBlocks == 0 {
		return Windowed
	}
	return 0
}

// Layers returns the model's layers. What is wrong with the numbers, Model
// reports.
func (c Transformer) Layers() []tape.Layer {
	c.FFN = setting.Or(c.FFN, 4*min(c.Hidden, setting.MaxField))
	f := c.Family.OrLlama()
	var layers []tape.Layer
	switch {
	case f.Layers != nil:
		layers = f.Layers(c)
	case f.Tower != nil:
		return []tape.Layer{tape.Wrong(fmt.Sprintf("%v is the Vision of another Transformer and no model by itself", f))}
	default:
		layers = c.decoder()
		if c.Vision != nil && c.Vision.Family.OrLlama().Tower != nil {
			layers = append(c.Vision.Family.Tower(*c.Vision, c.Hidden), layers...)
		}
	}
	if c.Audio != nil && c.Audio.Family.OrLlama().Tower != nil {
		layers = append(c.Audio.Family.Tower(*c.Audio, c.Hidden), layers...)
	}
	return layers
}

// KVCache returns the memory of the key/value cache of so many sequences of so
// many tokens. The error says what is wrong with the numbers, or that the family is
// an Encoder and has no cache.
func (c Transformer) KVCache(batch, context int, d alloc.DType) (alloc.Bytes, error) {
	if c.Family.Encoder() {
		return 0, fmt.Errorf("estimate the key/value cache: %v reads all at once and has none", c.Family)
	}
	return setting.KVCache(c.Cache(batch, context, d))
}

// Loss is the loss with which transformers trains the model: NextToken of a decoder's logits, and
// CrossEntropy of those of other heads. It is nil for models without a head, and for
// classifiers of texts.
func (c Transformer) Loss() tape.Layer {
	switch {
	case c.NoHead:
		return nil
	case c.Family.Seq2Seq() || c.MaskedLM:
		return layer.CrossEntropy{}
	case c.Family.Encoder() || c.Classes > 0:
		return nil
	}
	return layer.NextToken{}
}

// Half are the numbers of the decoder of an encoder and decoder.
func (c Transformer) Half() Transformer {
	c.Blocks, c.Heads, c.FFN = setting.Or(c.DecoderBlocks, c.Blocks), setting.Or(c.DecoderHeads, c.Heads), setting.Or(c.DecoderFFN, c.FFN)
	return c
}

// Transformer describes a transformer of one of the known families by the
// numbers that a config.json holds. Zero values that are not numbers of the
// model itself mean the family's defaults.
type Transformer struct {
	Family   *Family // nil means Llama
	Vocab    int     // tokens; unused by ViT
	Hidden   int     // width
	Blocks   int     // number of blocks
	Heads    int     // of queries
	KVHeads  int     // of keys and values; 0 means Heads
	HeadSize int     // 0 means Hidden / Heads
	FFN      int     // width of the MLP's middle; 0 means 4 x Hidden

	Positions int // learned positions (GPT2, BERT, OPT); in RoBERTa two are padding; of SD3 fixed ones
	Types     int // token types (BERT); 0 means 2
	RotaryDim int // elements of a head that rotate; 0 means all, and half of HeadSize is usual in Phi

	Context     int  // positions of the tables of rotation that each block had in older releases of transformers; 0 for none
	ContextMask bool // those releases had a mask of so many positions, too

	Window     int // of sliding window attention, for the key/value cache; 0 for none
	FullBlocks int // of the Blocks, those without the Window

	Experts      int // of a mixture in place of the MLP; 0 for none
	TopK         int // experts that each token visits; 0 means 2
	ExpertFFN    int // width of an expert's middle; 0 means FFN
	DenseBlocks  int // the first blocks, which have an MLP and no mixture
	SharedFFN    int // width of the MLP that each token visits besides; 0 for none
	Router       layer.Router
	Groups       int  // of experts (SigmoidRouter), among which their best two choose; 0 for none
	TopGroups    int  // groups that a token visits
	UnscaledTopK bool // the weights of a token's experts are not divided by their sum
	SharedGate   bool // a gate weighs the shared MLP (Qwen2-MoE)

	// Kinds say what is particular about each of the Blocks; nil for nothing. They take the
	// place of FullBlocks.
	Kinds []BlockKind

	// Latent is the attention in place of the usual (DeepSeek), whose Hidden and
	// Heads are the Transformer's; nil for none.
	Latent *layer.LatentAttention

	QKNorm       layer.QKNorm // norms of queries and keys (Llama, Gemma2)
	CappedScores bool         // attention's scores are capped by a tanh, as in Gemma 2
	CappedLogits bool         // the logits are

	QKVBias  bool // biases of the query, key and value projections (Llama, Qwen2 has them)
	Bias     bool // biases of all projections of Llama and Gemma
	Tied     bool // the head's weight is the embedding's
	HeadBias bool // of the head (PhiMoE)

	Parallel  bool // attention and MLP in parallel (StableLM, GPTNeoX, Falcon)
	TwoNorms  bool // of parallel parts, each has its own (Falcon)
	NormAfter bool // norms follow the sums (OPT)
	Alibi     bool // positions are biases of the scores in place of rotation (Falcon)
	ClipQKV   bool // queries, keys and values are bounded (OLMo)
	EmbedDim  int  // width of the embedding, with projections to Hidden (OPT, ELECTRA, ALBERT) and back (OPT); 0 means Hidden

	NoHead bool // the model ends at its last norm, without the head

	Activation   layer.Activation // the zero value is the family's own
	Dropout      float64          // of embeddings, scores and residuals (GPT2, BERT, ViT, Phi); 0 for none
	ScoreDropout float64          // of scores alone, where it is not Dropout (BART, Whisper)
	HeadDropout  float64          // before the classifier (DistilBERT, ALBERT)
	// PlainEmbeddings leaves embeddings out of the Dropout (Phi).
	PlainEmbeddings bool
	Plain           bool // attention that holds the scores, instead of flash attention

	// Of the decoder of an encoder and decoder (T5, BART, Whisper); 0 for as the encoder has it.
	DecoderBlocks, DecoderHeads, DecoderFFN int
	Buckets                                 int  // distances with biases of their own (T5)
	GatedFFN                                bool // the MLP has a gate (T5)
	SourceLength                            int  // what the encoder makes of a sound (Whisper)

	Image, Patch int // ViT: side of image and patch; 0 means 224 and 16
	Channels     int // ViT: 0 means 3; of Whisper's spectra
	Classes      int // width of a classifier in place of the head (not GPT2); 0 for none

	Merge   int  // towers: patches along a side that are joined; 0 means 2
	Taps    int  // Qwen3Vision: the blocks whose outputs are joined to the text's
	Batched bool // rotary tables are made for each sequence separately (Qwen2-VL and its successors)

	MaskedLM bool // BERT: the head that predicts masked tokens
	Detects  bool // ELECTRA: the head that tells tokens which were replaced
	Pooler   bool // ViT: what the class token goes through, and the head of Gemma 3's tower; BERT has it unless NoHead

	Teacher bool // DeiT: the distillation token has a classifier too, and the output is the mean of both

	kind BlockKind // of the block that is being made

	// Vision is the tower of images: of CLIP and SigLIP it runs; of the others its weights
	// are there and its images are not in the figures. A ViT is the SigLIP of Gemma 3; nil for none.
	Vision *Transformer
	// Audio is the tower of sounds of Gemma3n, which does not run either: Channels of a spectrum, and a Patch of
	// as many steps as its convolutions see; nil for none.
	Audio *Transformer

	// Own is what the Family alone has, such as an *AltUp of Gemma3n; nil for none.
	Own any
}

// Own is what only the family has, if it is a T; nil for another or none.
func Own[T any](c Transformer) *T {
	own, _ := c.Own.(*T)
	return own
}

// Cache describes the key/value cache, for KVConfig. An Encoder has none: what it is given then has no Layers,
// which Model refuses.
func (c Transformer) Cache(batch, context int, d alloc.DType) setting.KVConfig {
	if c.Family.Encoder() {
		return setting.KVConfig{Batch: batch, ContextLength: context, DType: d}
	}
	latent, width := 0, c.HeadWidth()
	switch {
	case c.Latent != nil && c.Latent.Whole:
		width = (c.Latent.NopeSize + c.Latent.RopeSize + c.Latent.ValueSize) / 2 // the mean of keys and values
	case c.Latent != nil:
		latent = c.Latent.KVRank + c.Latent.RopeSize
	}
	full, attend, fixed := c.FullBlocks, c.Blocks, int64(0)
	recurrent := c.recurrent()
	if c.Kinds != nil {
		full = 0
		for i := range min(c.Blocks, len(c.Kinds)) {
			switch {
			case c.Kinds[i]&Borrowing != 0:
				attend--
			case c.Kinds[i]&Recurrent != 0 && recurrent != nil:
				attend--
				fixed = setting.AddSat(fixed, recurrent.states)
			case c.Kinds[i]&Windowed == 0:
				full++
			}
		}
	}
	if kept := c.Family.OrLlama().cache; kept != nil {
		return setting.KVConfig{Batch: batch, ContextLength: context, Fixed: kept(c), DType: d}
	}
	if c.Family.Seq2Seq() {
		return c.Half().crossCache(batch, context, d)
	}
	if c.Family.OrLlama().broad != nil && latent == 0 {
		return c.unequalCache(batch, context, full, attend-full, d)
	}
	return setting.KVConfig{
		Batch: batch, ContextLength: context, Layers: attend, Fixed: int(min(fixed, setting.MaxField)), KVHeads: setting.Or(c.KVHeads, c.Heads),
		HeadSize: width, Latent: latent, Window: c.Window, Full: full, DType: d,
	}
}

// unequalCache is that of blocks with and without a window whose keys differ in width: each counts for as many blocks as the
// widths' common divisor goes into its own.
func (c Transformer) unequalCache(batch, context, full, windowed int, d alloc.DType) setting.KVConfig {
	wide, narrow := max(1, c.Family.broad(c)), max(1, product(setting.Or(c.KVHeads, c.Heads), c.HeadWidth()))
	unit := narrow
	for rest := wide; rest != 0; {
		unit, rest = rest, unit%rest
	}
	full, windowed = product(full, wide/unit), product(windowed, narrow/unit)
	return setting.KVConfig{Batch: batch, ContextLength: context, Layers: min(full, setting.MaxField-windowed) + windowed, Full: full, Window: c.Window, KVHeads: 1, HeadSize: unit, DType: d}
}

// product is that of two numbers, bounded as all numbers of a model are.
func product(a, b int) int { return int(min(setting.FLOPs(a, b), setting.MaxField)) }

// crossCache is the cache of a decoder that reads an encoder's output, whose keys and values
// are kept too: of a sound as many as it has, of a text as many as the context.
func (c Transformer) crossCache(batch, context int, d alloc.DType) setting.KVConfig {
	k := setting.KVConfig{Batch: batch, ContextLength: context, Layers: c.Blocks, KVHeads: c.Heads, HeadSize: c.HeadWidth(), DType: d}
	if c.SourceLength > 0 {
		k.Fixed = int(min(setting.FLOPs(2, c.Blocks, c.Heads, c.HeadWidth(), c.SourceLength), setting.MaxField))
	} else {
		k.Layers *= 2
	}
	return k
}

func (c Transformer) HeadWidth() int {
	if c.HeadSize != 0 || c.Heads == 0 {
		return c.HeadSize
	}
	return c.Hidden / c.Heads
}

// Drop is the layer for the configured dropout.
func (c Transformer) Drop() tape.Layer {
	if c.Dropout == 0 {
		return tape.Identity{}
	}
	return layer.Dropout{P: c.Dropout}
}

// Pooled is what BertModel and ViTModel make of the first token.
func (c Transformer) Pooled() tape.Layer {
	return tape.Named{Name: "pooler", Layer: tape.Sequential{
		First{},
		tape.Named{Name: "dense", Layer: layer.Linear{In: c.Hidden, Out: c.Hidden}},
		tape.Named{Name: "activation", Layer: layer.Tanh{}},
	}}
}

// Side is the number of patches along an image's side.
func (c Transformer) Side() int { return setting.Or(c.Image, 224) / max(1, c.Patch) }

func (c Transformer) PatchConv(noBias bool) tape.Layer {
	return layer.Conv2d{In: c.Channels, Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch, NoBias: noBias}
}

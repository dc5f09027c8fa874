package family

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// BlockKind says how a block of a Transformer differs from the others.
type BlockKind uint8

// What may differ in a block; a block can have several.
const (
	Windowed   BlockKind = 1 << iota // attention sees only the Window
	NoRotation                       // it does not rotate queries and keys
	Recurrent                        // the family's recurrence replaces attention
	Sparse                           // it has a mixture; if no block is marked, all blocks after DenseBlocks have one
	Borrowing                        // it uses the keys and values of the last earlier block with a window, or without one, as it has itself
	Thinned                          // the MLP sets most elements of its middle to 0
	Unattended                       // it has neither attention nor a recurrence
)

// Kind returns the kind of a block.
func (c Transformer) Kind(block int) BlockKind {
	if block < len(c.Kinds) {
		return c.Kinds[block]
	}
	if c.Kinds == nil && c.Window > 0 {
		return Windowed
	}
	return 0
}

// Layers returns the model's layers. Model reports numbers that make no sense.
func (c Transformer) Layers() []tape.Layer {
	c.FFN = setting.Or(c.FFN, 4*min(c.Hidden, setting.MaxField))
	f := c.Family.OrLlama()
	var layers []tape.Layer
	switch {
	case f.Layers != nil:
		layers = append(c.towers(), f.Layers(c)...)
	case f.Tower != nil:
		return []tape.Layer{tape.Wrong(fmt.Sprintf("%v is the Vision of another Transformer and no model by itself", f))}
	default:
		layers = c.decoder()
	}
	return layers
}

// ImageTokens returns how many tokens of each text stand for images, and whether that depends on the
// images' size.
func (c Transformer) ImageTokens() (tokens int, sized bool) {
	if !c.runsTower() {
		return 0, false
	}
	return c.Vision.Prompt.Tokens, c.Vision.Prompt.Sized
}

// SoundTokens returns how many tokens of each text stand for sounds.
func (c Transformer) SoundTokens() int {
	if c.Audio == nil || c.Audio.Prompt == nil {
		return 0
	}
	return c.Audio.Prompt.Tokens
}

// runsTower reports whether images run through the tower.
func (c Transformer) runsTower() bool { return c.Vision != nil && c.Vision.Prompt != nil }

// ofTowers returns what the towers read with a batch of texts of this length.
func (c Transformer) ofTowers(batch, length int) []Input {
	var inputs []Input
	for _, tower := range []*Transformer{c.Vision, c.Audio} {
		if tower != nil && tower.Prompt != nil {
			inputs = append(inputs, tower.Prompt.Inputs(batch, length, tower.Prompt.Count)...)
		}
	}
	return inputs
}

// towers returns the layers of the towers, whose vectors take the places of tokens after the token
// embedding. Where nothing is given to read, they are held.
func (c Transformer) towers() []tape.Layer {
	var layers []tape.Layer
	read := 1 // inputs of the model
	for _, tower := range []*Transformer{c.Vision, c.Audio} {
		if tower == nil || tower.Family.OrLlama().Tower == nil || c.Family.Encoder() { // CLIP and SigLIP run theirs
			continue
		}
		parts := tower.Family.Tower(*tower, c.Hidden)
		if p := tower.Prompt; p != nil {
			run := running{parts, read, len(p.Inputs(1, 1, 1))}
			read += run.inputs
			layers = append(layers, tape.Inline(run.over(tower.Family)))
			continue
		}
		for _, part := range parts {
			if named, ok := part.(tape.Named); ok { // what has no name has no parameters
				layers = append(layers, tape.As(named.Name, Held{named.Layer, true}))
			}
		}
	}
	return layers
}

// over returns the layer that gives the text what the tower of this family makes.
func (l running) over(f *Family) tape.Layer {
	if f.Beside != nil {
		return apart{l, f.Beside}
	}
	if f.Index {
		return indexed{l}
	}
	return merged{l, f.Masked}
}

// KVCache returns the memory of the key/value cache for a batch of sequences of this length. The
// error says that a number makes no sense, or that the family is an Encoder and has no cache.
func (c Transformer) KVCache(batch, context int, d alloc.DType) (alloc.Bytes, error) {
	if c.Family.Encoder() {
		return 0, fmt.Errorf("estimate the key/value cache: %v reads all at once and has none", c.Family)
	}
	k, err := setting.KVCache(c.Cache(batch, context, d))
	return k.All(), err
}

// Loss returns the loss with which transformers trains a model that predicts tokens: NextToken for a decoder's logits,
// CrossEntropy for others. It is nil for models without a head and for classifiers, which Model.Loss has.
func (c Transformer) Loss() tape.Layer {
	switch {
	case c.MaskedLM: // NoHead then leaves out what is below
		return layer.CrossEntropy{}
	case c.NoHead:
		return nil
	case c.Family.Seq2Seq():
		return layer.CrossEntropy{}
	case c.Family.Encoder() || c.Classes > 0:
		return nil
	}
	return layer.NextToken{}
}

// Half returns the numbers of the decoder of a model with an encoder and a decoder.
func (c Transformer) Half() Transformer {
	c.Blocks, c.Heads, c.FFN = setting.Or(c.DecoderBlocks, c.Blocks), setting.Or(c.DecoderHeads, c.Heads), setting.Or(c.DecoderFFN, c.FFN)
	return c
}

// Transformer describes a transformer of a known family by the numbers that a config.json holds.
// For settings that are not sizes of the model, the zero value means the family's default.
type Transformer struct {
	Family   *Family // nil means Llama
	Vocab    int     // tokens; unused by ViT
	Hidden   int     // width
	Blocks   int     // number of blocks
	Heads    int     // of queries
	KVHeads  int     // of keys and values; 0 means Heads
	HeadSize int     // 0 means Hidden / Heads
	FFN      int     // width of the MLP's middle; 0 means 4 x Hidden

	Positions int // learned positions (GPT2, BERT, OPT); two of RoBERTa's are padding; SD3's are fixed
	Types     int // token types (BERT); 0 means 2
	EmbedDim  int // width of the embedding, with projections to Hidden (OPT, ELECTRA, ALBERT) and back (OPT); 0 means Hidden

	Tied       bool             // the head's weight is the embedding's
	Bias       bool             // biases of all projections of Llama and Gemma
	MLPBias    bool             // biases of the MLP only
	Parallel   bool             // attention and MLP in parallel (StableLM, GPTNeoX, Falcon)
	NormAfter  bool             // norms follow the sums (OPT)
	GatedFFN   bool             // the MLP has a gate (T5)
	Activation layer.Activation // the zero value is the family's own
	Dropout    float64          // of embeddings, scores and residuals (GPT2, BERT, ViT, Phi); 0 means none

	Attention
	Mixture
	Head
	Decoder
	Pixels

	WholeImages bool // tokens of an image attend to each other in both directions, so that engines run it in one step

	StateType alloc.DType // of the states of recurrent blocks, where a config.json names one; 0 means that it names none

	// Deepstack is the number of blocks to whose output llama.cpp adds vectors of images, which its input has beside those of
	// the tokens (Qwen3-VL).
	Deepstack int
	// Predicting is the number of blocks after these that predict further tokens, of which a GGUF file may have some. They
	// attend, and run only where llama.cpp drafts with them.
	Predicting int

	Kinds []BlockKind // what differs in each of the Blocks; nil means nothing
	kind  BlockKind   // of the block that is being built

	// Vision is the tower for images; nil means none. In CLIP and SigLIP it runs. In other models
	// it runs if it has a Prompt; else its weights are counted, but the estimate includes no images.
	Vision *Transformer
	// Audio is the tower for sounds, which runs if it has a Prompt; nil means none. Its Channels are those of a spectrum.
	Audio *Transformer

	Prompt *Prompt // what this tower reads; nil means nothing

	// Own is what only this Family has, such as an *AltUp of Gemma3n; nil means nothing.
	Own any
}

// Attention says what attention does in another way than usual.
type Attention struct {
	Latent  *layer.LatentAttention // replaces the usual attention (DeepSeek), with the Transformer's Hidden and Heads; nil means none
	Window  int                    // length of the sliding window, for the key/value cache; 0 means none
	Chunked bool                   // the Window is the length of chunks: a token sees none of an earlier chunk
	Plain   bool                   // it holds the scores, instead of flash attention

	AttentionBias bool         // biases of the query, key, value and output projections
	QKVBias       bool         // biases of the query, key and value projections (Llama, Qwen2 has them)
	QKNorm        layer.QKNorm // norms of queries and keys (Llama, Gemma2)
	CappedScores  bool         // a tanh caps the scores, as in Gemma 2
	ScoreDropout  float64      // of scores, if it differs from Dropout (BART, Whisper)
	Buckets       int          // buckets of distances, each with a bias (T5)

	RotaryDim   int  // elements of a head that rotate; 0 means all, or for Phi half of HeadSize
	Batched     bool // each sequence has rotary tables of its own (Qwen2-VL and its successors)
	Context     int  // positions in each block's rotary tables in older releases of transformers; 0 means none
	ContextMask bool // those releases also had a mask for Context positions
}

// Mixture is the mixture of experts that replaces the MLP.
type Mixture struct {
	Experts      int  // 0 means no mixture
	TopK         int  // experts that each token passes; 0 means 2
	ExpertFFN    int  // width of an expert's middle; 0 means FFN
	DenseBlocks  int  // the first blocks that have an MLP and no mixture
	SharedFFN    int  // width of the MLP that every token passes besides its experts; 0 means none
	SharedGate   bool // a gate weighs the shared MLP (Qwen2-MoE)
	Router       layer.Router
	Groups       int  // groups of experts (SigmoidRouter), chosen by their best two experts; 0 means none
	TopGroups    int  // groups that a token may use
	UnscaledTopK bool // the weights of a token's experts are not divided by their sum
}

// Head is what follows the last norm.
type Head struct {
	NoHead        bool    // nothing
	HeadBias      bool    // the head has a bias (PhiMoE), or one more (encoders of texts)
	CappedLogits  bool    // a tanh caps the logits
	MaskedLM      bool    // BERT: the head that predicts masked tokens
	Classes       int     // width of a classifier instead of the head; 0 means none
	OfTokens      bool    // the classifier reads each token, not one for each input (ModernBERT)
	Spans         bool    // the classifier scores each token as the first and the last of an answer (encoders)
	BiasedClasses bool    // the classifier of a decoder has a bias
	HeadDropout   float64 // before the classifier (DistilBERT, ALBERT, decoders)
	Pooler        bool    // ViT: the layer after the class token, and the head of Gemma 3's tower; BERT has one unless NoHead
}

// Decoder has the numbers of the decoder in models with an encoder and a decoder (T5, BART, Whisper);
// 0 means the encoder's.
type Decoder struct {
	DecoderBlocks, DecoderHeads, DecoderFFN int
	SourceLength                            int // length of the encoder's output for a sound (Whisper)
}

// Pixels are the sizes of images.
type Pixels struct {
	Image, Patch int // side of image and patch; of a ViT 0 means 224 and 16
	Channels     int // of a ViT 0 means 3; of Whisper's spectra
	Merge        int // towers: patches along a side that are merged; 0 means 2
}

// Own returns what only this family has, if it is a T, and otherwise nil.
func Own[T any](c Transformer) *T {
	own, _ := c.Own.(*T)
	return own
}

// CacheSpecs returns what each layer keeps of a sequence, in the order of the layers. A layer that keeps nothing of
// its own, such as one that borrows keys and values, has no spec. An Encoder has none at all.
func (c Transformer) CacheSpecs() []setting.CacheSpec {
	switch f := c.Family.OrLlama(); {
	case c.Family.Encoder():
		return nil
	case f.keeps != nil:
		return c.each(func(block int) []setting.CacheSpec { return f.keeps(c, block) })
	case c.Family.Seq2Seq():
		return c.Half().each(c.Half().crossSpecs)
	}
	return c.each(c.blockSpecs)
}

// each returns the specs of all blocks, with the numbers of their blocks.
func (c Transformer) each(of func(block int) []setting.CacheSpec) []setting.CacheSpec {
	var specs []setting.CacheSpec
	for block := range min(c.Blocks, tape.MaxLayers) {
		for _, s := range of(block) {
			s.Layer = block
			specs = append(specs, s)
		}
	}
	return specs
}

// blockSpecs returns what a block of a decoder keeps.
func (c Transformer) blockSpecs(block int) []setting.CacheSpec {
	var specs []setting.CacheSpec
	kind, recurrent := c.Kind(block), c.recurrent()
	if recurrent == nil || kind&Recurrent == 0 {
		recurrent = &recurrence{beside: true}
	}
	if kind&(Borrowing|Unattended) == 0 && recurrent.beside {
		specs = append(specs, c.attentionSpec(kind))
	}
	if s := recurrent.keeps; s.Kind != "" {
		s.StateType = c.StateType
		specs = append(specs, s)
	}
	return specs
}

// attentionSpec returns what the attention of a block of this kind keeps.
func (c Transformer) attentionSpec(kind BlockKind) setting.CacheSpec {
	if c.Latent != nil {
		latent := *c.Latent
		latent.Heads = c.Heads
		return latent.Keeps()
	}
	s := c.wholeSpec()
	f := c.Family.OrLlama()
	switch {
	case kind&Windowed == 0 && f.fullHeads != nil:
		heads, size := f.fullHeads(c)
		s.KVHeads = setting.Or(heads, s.KVHeads)
		s.HeadSize, s.ValueSize = setting.Or(size, s.HeadSize), setting.Or(size, s.ValueSize)
	case kind&Windowed == 0 || f.whole:
	case c.Chunked:
		s.Kind, s.Window = setting.Chunked, c.Window
	default:
		s.Kind, s.Window = setting.Sliding, c.Window
	}
	return s
}

// wholeSpec is that of attention to all tokens.
func (c Transformer) wholeSpec() setting.CacheSpec {
	return setting.CacheSpec{Kind: setting.Full, KVHeads: setting.Or(c.KVHeads, c.Heads), HeadSize: c.HeadWidth(), ValueSize: c.HeadWidth()}
}

// crossSpecs returns what a block of a decoder keeps that reads an encoder's output: keys and values of its own tokens, and
// those of that output, which has a fixed length for a sound and as many tokens as the context for a text.
func (c Transformer) crossSpecs(int) []setting.CacheSpec {
	own := setting.CacheSpec{Kind: setting.Full, KVHeads: c.Heads, HeadSize: c.HeadWidth(), ValueSize: c.HeadWidth()}
	cross := own
	cross.Kind, cross.Source = setting.Cross, c.SourceLength
	return []setting.CacheSpec{own, cross}
}

// Cache returns the configuration of the key/value cache: the sum of all CacheSpecs, as transformers keeps them. An Encoder
// has none: its configuration has no Layers, which Model refuses.
func (c Transformer) Cache(batch, context int, d alloc.DType) setting.KVConfig {
	k := setting.KVConfig{Batch: batch, ContextLength: context, DType: d}
	fixed, states := int64(0), int64(0)
	full := setting.CacheSpec{}
	for _, s := range c.CacheSpecs() {
		switch {
		case s.Kind == setting.Recurrent: // transformers keeps as many inputs of a convolution as its kernel reads
			fixed = setting.AddSat(fixed, setting.FLOPs(s.Channels, s.Kernel))
			states = setting.AddSat(states, setting.FLOPs(s.StateHeads, s.HeadState))
		case s.Kind == setting.Cross && s.Source > 0:
			fixed = setting.AddSat(fixed, setting.FLOPs(2, s.KVHeads, s.HeadSize, s.Source))
		case s.Window > 0:
			k.Layers++
			k.Window, k.KVHeads, k.HeadSize = s.Window, s.KVHeads, s.HeadSize
		default:
			k.Layers++
			k.Full++
			k.Latent = s.Latent + s.Index
			full = s
		}
	}
	switch {
	case k.Window == 0: // Full is for layers beside those with a window
		k.Full, k.KVHeads, k.HeadSize = 0, full.KVHeads, full.HeadSize
		if full.ValueSize != full.HeadSize {
			k.ValueSize = full.ValueSize
		}
	case k.Full > 0:
		k.FullKVHeads, k.FullHeadSize = full.KVHeads, full.HeadSize
	}
	if c.Blocks > tape.MaxLayers {
		k.Layers = c.Blocks
	}
	k.Fixed, k.States = int(min(fixed, setting.MaxField)), int(min(states, setting.MaxField))
	return k
}

// StepWidth returns how many elements each token of a step takes at most in an engine with fused kernels, on one of the GPUs that
// share each layer: the residual stream and the block's input, and beside them the widest part of a block. Attention holds
// queries, keys, values and its output; a gated MLP both halves and their product; a mixture, for each of the token's experts, the
// wider of both halves and the output, and the product (vLLM 0.33.0, fused_moe.py, fused_experts_impl); a mixer what its
// convolution reads and writes, and its gate.
func (c Transformer) StepWidth(tensor int) int64 {
	width := func(factors ...int) int64 { return min(setting.FLOPs(factors...), setting.MaxField) }
	heads, kv, size := c.Heads, setting.Or(c.KVHeads, c.Heads), c.HeadWidth()
	widest := 2*width(heads, size) + 2*width(kv, size)
	if l := c.Latent; l != nil { // keys and values of all heads are made of the latent
		widest = 2*width(heads, l.NopeSize+l.RopeSize) + 2*width(heads, l.NopeSize+l.ValueSize)
	}
	ffn := setting.Or(c.FFN, 4*min(c.Hidden, setting.MaxField/4))
	widest = max(widest, 3*width(ffn))
	if c.Experts > 0 {
		each, top := setting.Or(c.ExpertFFN, ffn), setting.Or(c.TopK, 2)
		widest = max(widest, width(top, max(2*min(each, setting.MaxField/2), c.Hidden))+width(top, each)+3*width(c.SharedFFN))
	}
	for _, s := range c.CacheSpecs() {
		if s.Kind == setting.Recurrent {
			widest = max(widest, 2*width(s.Channels)+2*width(s.StateHeads, s.HeadState)/64+width(c.Hidden))
		}
	}
	return 2*width(c.Hidden) + (widest+int64(max(1, tensor))-1)/int64(max(1, tensor))
}

// HeadWidth returns the number of elements of a head.
func (c Transformer) HeadWidth() int {
	if c.HeadSize != 0 || c.Heads == 0 {
		return c.HeadSize
	}
	return c.Hidden / c.Heads
}

// Drop returns the layer for the configured dropout.
func (c Transformer) Drop() tape.Layer {
	if c.Dropout == 0 {
		return tape.Identity{}
	}
	return layer.Dropout{P: c.Dropout}
}

// Pooled returns the layers after the first token in BertModel and ViTModel.
func (c Transformer) Pooled() tape.Layer {
	return tape.As("pooler", tape.Sequential{
		First{},
		tape.As("dense", layer.Linear{In: c.Hidden, Out: c.Hidden}),
		tape.As("activation", layer.Tanh{}),
	})
}

// Side returns the number of patches along an image's side.
func (c Transformer) Side() int { return setting.Or(c.Image, 224) / max(1, c.Patch) }

func (c Transformer) PatchConv(noBias bool) tape.Layer {
	return layer.Conv2d{In: c.Channels, Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch, NoBias: noBias}
}

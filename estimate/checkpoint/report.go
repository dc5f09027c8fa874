package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/diffusion"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/quantconfig"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// Layers returns the model's layers, ready for Model. The error is
// ErrNoArchitecture if the files hold tensors only, ErrUnknownArchitecture
// if the architecture is none that this package builds, and fs.ErrInvalid if its
// settings are wrong.
func (c *File) Layers() ([]nn.Layer, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	return layer.Public(c.architecture.Layers()), nil
}

// Cache describes the model's key/value cache, for estimate.KVCache and as an option. It is for
// batch sequences of context tokens each; 0 tokens means the longest text that the model was made for, or 2,048 tokens if the
// files do not say how long that is. As an option it is the cache of transformers, where layers with a window hold all
// tokens of the input until the next one; set the result's Static for a server that allocates ahead, and before
// estimate.KVCache its Prompt for what a prompt of that length leaves. Set the DType if it is not float16. For an unknown
// architecture, Cache uses the numbers of layers and heads and the size of a head, if the file has
// them under the usual names. The errors are those of Layers. Models without a cache, such as BERT
// and ViT, are an error, and so are more tokens than a model has learned positions for.
func (c *File) Cache(batch, context int) (estimate.KVConfig, error) {
	if _, err := c.Architecture(); err != nil && !c.architecture.cache {
		return estimate.KVConfig{}, err
	}
	if a := c.architecture; a.Family.Encoder() || a.Images != nil {
		return estimate.KVConfig{}, fmt.Errorf("checkpoint: key/value cache of a %s model: it writes no text and has none", a.Type)
	} else if most := a.MaxPositions(); most > 0 && context > most {
		return estimate.KVConfig{}, fmt.Errorf("checkpoint: key/value cache of %d tokens: the model has %d positions", context, most)
	}
	if context == 0 {
		context = c.architecture.ServedTokens()
	}
	return estimate.KVConfig(c.architecture.Cache(batch, context, 0)), nil
}

// CacheSpecs describes what each layer of the model keeps of a sequence, for the planners of package serving. The errors are
// those of Cache.
func (c *File) CacheSpecs() ([]serving.CacheSpec, error) {
	if _, err := c.Cache(1, 1); err != nil {
		return nil, err
	}
	specs := c.architecture.CacheSpecs()
	all := make([]serving.CacheSpec, len(specs))
	for i, s := range specs {
		all[i] = serving.CacheSpec(s)
	}
	return all, nil
}

// StepWidth returns how many elements each token of a step takes at most in an engine whose kernels are fused, such as vLLM, on
// one of tensor GPUs that share each layer: the residual stream, and what the widest part of a layer holds. Towers for images
// are not counted. The errors are those of CacheSpecs.
func (c *File) StepWidth(tensor int) (int64, error) {
	if _, err := c.Cache(1, 1); err != nil {
		return 0, err
	}
	return c.architecture.StepWidth(tensor), nil
}

// Loss returns the loss with which transformers trains the model's class if it is given labels, for estimate.WithLoss. It
// returns nil if there is none, or if it is unknown.
func (c *File) Loss() nn.Layer {
	if _, err := c.Architecture(); err != nil {
		return nil
	}
	return layer.PublicLoss(c.architecture.Loss())
}

// LoRATargets returns the layers that PEFT adapts by default in a model of this type, for estimate.LoRA, and the version of
// PEFT that is meant. There are none if PEFT wants them named, or if the architecture is unknown.
func (c *File) LoRATargets() (targets []string, peft string) {
	tables := family.TablesOfPEFT()
	for _, target := range tables.Default(c.architecture.Type) {
		if name := c.linear(target); name != "" {
			targets = append(targets, name)
		}
	}
	return targets, tables.Version
}

// linear returns the pattern if it names a linear layer of the model, and otherwise the same without the place of the text in a
// model of images and text, if that does.
func (c *File) linear(pattern string) string {
	r, err := c.Report()
	if err != nil {
		return ""
	}
	for _, p := range []string{pattern, strings.TrimPrefix(pattern, "*language_model.")} {
		if slices.ContainsFunc(r.Layers, func(l estimate.Row) bool { return l.Kind == "Linear" && setting.Names(p, l.Path) }) {
			return p
		}
	}
	return ""
}

// Input returns the option for the model's input:
//
//   - A language model reads batch texts of length tokens. A length of 0 means 2,048 tokens, or the longest text that the
//     model was made for, if that is shorter.
//   - A model with an encoder and a decoder reads as many tokens in both. Whisper's encoder reads a
//     whole window of sound.
//   - A model that is Prompted reads batch texts with their images and sounds. The length, which counts their tokens too, must
//     be ImageTokens and SoundTokens or more; the usual one is that of a text and these.
//   - A model of images alone reads batch images of its own size; length must be 0.
//   - A model that makes images or videos reads noisy ones of the usual size, and a text.
//
// The errors are those of Layers; a pipeline with missing parts is an error too.
func (c *File) Input(batch, length int) (estimate.Option, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	a := c.architecture
	if p, ok := a.Images.(pipeline); ok && len(p.missing) > 0 { // so that the rest is not taken for all of it
		return nil, fmt.Errorf("checkpoint: input of a pipeline: %s", p.note())
	}
	if length != 0 && a.SeesImages() {
		return nil, fmt.Errorf("checkpoint: input of %d tokens: a %s model reads images", length, a.Type)
	}
	images, _ := c.ImageTokens()
	what := "the images"
	if images == 0 {
		what = "the sounds"
	}
	if tokens := images + c.SoundTokens(); length != 0 && length < tokens {
		return nil, fmt.Errorf("checkpoint: input of %d tokens: %d stand for %s alone", length, tokens, what)
	}
	return family.Given(a.Inputs(batch, length)), nil
}

// Images returns the model for images of side x side pixels, in place of the size in its
// config.json. It is an error if the weights fit only one size (such as ViT's positions), if the
// model reads no images, or if side does not divide into patches.
func (c *File) Images(side int) (*File, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	sized := *c
	if err := sized.architecture.Resize(side); err != nil {
		return nil, fmt.Errorf("checkpoint: images of %d x %d: %w", side, side, err)
	}
	return &sized, nil
}

// Videos returns the model for videos of this many frames, in place of the usual number. In a
// pipeline the autoencoder decodes as many. It is an error if the model makes no videos, or if the
// frames after the first do not divide into latent frames: Wan and HunyuanVideo make 4k + 1 frames,
// LTX-Video 8k + 1.
func (c *File) Videos(frames int) (*File, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	filmed := *c
	if err := filmed.architecture.Film(frames); err != nil {
		return nil, fmt.Errorf("checkpoint: videos of %d frames: %w", frames, err)
	}
	return &filmed, nil
}

// References returns the model for images that refer to this many others, as FLUX.1 Kontext, FLUX.2 and Qwen-Image-Edit make
// them. Each has some 1024 x 1024 pixels, to which diffusers' pipelines bring them. It is an error if the model makes no such images.
func (c *File) References(images int) (*File, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	referring := *c
	if err := referring.architecture.Refer(images); err != nil {
		return nil, fmt.Errorf("checkpoint: reference images: %w", err)
	}
	return &referring, nil
}

// Video returns the number of frames of the videos that the model makes, and the side of each, in
// pixels; frames are square. Both are 0 if it makes no videos.
func (c *File) Video() (frames, side int) { return c.architecture.Video() }

// ReadsSound reports whether the model reads samples of sounds: Input then takes their number for the length.
func (c *File) ReadsSound() bool { return c.architecture.Family.OrLlama().Usual > 0 }

// InPrompt says which images and sounds stand in each text, for Prompted.
type InPrompt struct {
	Images        int     // in each text
	Width, Height int     // of each image, in pixels; 0 means 1024
	Sounds        int     // in each text
	Seconds       float64 // of each sound; 0 means 30
}

// Prompted returns the model with images or sounds in each text. They run through its towers, and the vectors
// that these make of them take the places of tokens of the text, which ImageTokens and SoundTokens count. Without it
// the towers are held, and nothing runs through them. It is an error if the model reads no images or no sounds with a text,
// or if this package does not know how they run through it.
//
// Sizes are those of the images and sounds as given: the model's processor, with the settings that transformers
// 5.24 has where a file says nothing else, scales them and cuts them up.
func (c *File) Prompted(p InPrompt) (*File, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	prompted := *c
	if p.Images != 0 || p.Sounds == 0 {
		if err := prompted.architecture.See(p.Images, cmp.Or(p.Width, family.UsualImage), cmp.Or(p.Height, family.UsualImage)); err != nil {
			return nil, fmt.Errorf("checkpoint: images in the prompt: %w", err)
		}
	}
	if p.Sounds != 0 {
		if err := prompted.architecture.Hear(p.Sounds, cmp.Or(p.Seconds, family.UsualSeconds)); err != nil {
			return nil, fmt.Errorf("checkpoint: sounds in the prompt: %w", err)
		}
	}
	return &prompted, nil
}

// ImageTokens returns how many tokens of each text stand for images, as the model's processor counts
// them, and whether that depends on the images' size. There are none if the model is not Prompted.
func (c *File) ImageTokens() (tokens int, sized bool) { return c.architecture.ImageTokens() }

// SoundTokens returns how many tokens of each text stand for sounds, as the model's processor counts
// them. There are none if the model is not Prompted.
func (c *File) SoundTokens() int { return c.architecture.SoundTokens() }

// Report estimates the model, as estimate.Model does for layers. Without options, the element type
// is the one that most of the weights have. If the architecture is unknown, the report has only the
// parameters, and says so; an input is an error then. If there are no weights either, the error is
// that of Layers.
//
// Weights are counted as they are stored, quantized ones too, unless the options give them a type
// or shard them; a note of the report says which.
func (c *File) Report(opts ...estimate.Option) (*estimate.Report, error) {
	layers, err := c.Layers()
	untold := errors.Is(err, ErrNoArchitecture) || errors.Is(err, ErrUnknownArchitecture)
	switch {
	case untold && len(c.tensors) == 0:
		return nil, err // not even the weights are known
	case untold:
		layers = layer.Public(c.stored())
	case err != nil:
		return nil, err
	}
	var asked setting.Config
	look := setting.Func(func(c *setting.Config) { asked = *c })
	pipe, ok := c.architecture.Images.(pipeline)
	r, err := estimate.Model(layers, slices.Concat([]estimate.Option{estimate.Name(c.Name)}, c.types(), opts, []estimate.Option{estimate.Missing(pipe.missing...), look})...)
	if err != nil {
		return nil, err
	}
	r.Notes = append(r.Notes, c.notes...)
	if ok {
		r.Notes = append(r.Notes, pipe.notes()...)
	}
	if len(c.tensors) == 0 {
		r.Notes = append(r.Notes, c.architecture.Assumed...)
	}
	switch held, described := c.parameters(), r.Params.Count-adapters(r); {
	case untold:
		r.Notes = append(r.Notes, fmt.Sprintf("only the parameters are known, not what runs: %v", c.architectureErr))
		if c.architecture.cache && r.Inference.Cache > 0 {
			r.Notes = append(r.Notes, "keys and values are counted by the config's own numbers of layers and heads, and their size")
		}
	case len(pipe.planned) > 0: // the files hold some parts alone
	case len(c.tensors) == 0 && c.architecture.quantized != nil && c.architecture.quantized.Unread == "" && asked.Packed == nil && asked.Quantized == nil: // in a type that was asked for
	case len(c.tensors) == 0 && c.architecture.quantized != nil:
		r.Notes = append(r.Notes, c.quantizedNote())
	case len(c.tensors) > 0 && c.architecture.quantized == nil && held != described:
		r.Notes = append(r.Notes, fmt.Sprintf("the files hold %s parameters, the layers have %s", text.Grouped(held), text.Grouped(described)))
	}
	return r, nil
}

// adapters is the number of parameters that a LoRA adds.
func adapters(r *estimate.Report) int64 {
	n := int64(0)
	for _, row := range r.Layers {
		if strings.HasSuffix(row.Path, ".lora_A") || strings.HasSuffix(row.Path, ".lora_B") {
			n += row.Params
		}
	}
	return n
}

// types are the options that the files give.
func (c *File) types() []estimate.Option {
	d := c.architecture.dtype
	switch totals := c.totals(); {
	case c.architecture.quantized != nil: // what is stored is packed
		d = cmp.Or(d, alloc.Float16)
	case len(totals) > 0: // GGUF's quantized weights are computed with in float16
		d = cmp.Or(totals[0].encoding.dtype, alloc.Float16)
	}
	opts := []estimate.Option{heldIn(c.base()), unread(c.doubts()), setting.Func(func(cfg *setting.Config) {
		cfg.Fused = family.TablesOfPEFT().FusedLayers(c.architecture.Type)
		cfg.Float32 = c.architecture.Float32
	})}
	switch d {
	case 0:
	case alloc.Float16, alloc.BFloat16, alloc.Float32, alloc.Float64:
		opts = append(opts, estimate.Precision(d))
	default:
		opts = append(opts, estimate.Precision(alloc.Float16), estimate.Weights(d))
	}
	if p, ok := c.architecture.Images.(interface{ NotTrained() []string }); ok && c.architectureErr == nil {
		opts = append(opts, estimate.Frozen(p.NotTrained()...))
	}
	if len(c.tensors) > 0 {
		opts = append(opts, storedIn(c.weights()))
	} else if c.architecture.quantized != nil {
		opts = append(opts, packedIn(c.packed()))
	}
	return opts
}

// doubts is what was not read. The parts of a pipeline are modules of the same names.
func (c *File) doubts() setting.Unread {
	u := c.architecture.Doubts()
	if _, ok := c.architecture.Images.(pipeline); ok {
		for i := range u.Parts {
			u.Parts[i].Modules = []string{u.Parts[i].Name}
		}
	}
	return u
}

// unread says what was not read.
func unread(u setting.Unread) estimate.Option {
	return setting.Func(func(c *setting.Config) { c.Unread = u })
}

// storedIn gives inference this size of the weights: a Count of 0 means all of the layers' parameters; those that the files
// lack count in the type of weights.
func storedIn(a estimate.Amount) estimate.Option {
	return setting.Func(func(c *setting.Config) { c.Stored = setting.Amount(a) })
}

// weights returns the size of what the files hold, without buffers.
func (c *File) weights() estimate.Amount {
	held := estimate.Amount{Count: c.parameters()}
	for _, t := range c.tensors {
		if !t.isBuffer() {
			held.Bytes += t.Bytes
			if c.architecture.Float32.Keeps(t.encoding.dtype, "", t.Name) {
				held.Bytes += t.Bytes // loading makes it twice as wide
			}
		}
	}
	if c.architecture.quantized != nil { // several weights in an element
		held.Count = 0
	}
	return held
}

// stored returns layers that have the tensors and nothing else, one for each module
// that the tensors' names tell.
func (c *File) stored() []tape.Layer {
	var layers []tape.Layer
	at := map[string]int{}
	for _, t := range c.tensors {
		module, name := "", t.Name
		if dot := strings.LastIndexByte(t.Name, '.'); dot >= 0 {
			module, name = t.Name[:dot], t.Name[dot+1:]
		}
		i, ok := at[module]
		if !ok {
			i = len(layers)
			at[module] = i
			layers = append(layers, tape.Named{Name: module, Layer: &diffusion.Stored{}})
		}
		m := layers[i].(tape.Named).Layer.(*diffusion.Stored)
		m.Params = append(m.Params, tape.Param{Name: name, Shape: t.Shape, DType: t.encoding.dtype, Buffer: t.isBuffer()})
	}
	return layers
}

// packed returns the sizes of the weights that a config.json says are quantized.
func (c *File) packed() map[string]quantconfig.Size {
	q := c.architecture.quantized
	if q == nil || len(c.tensors) > 0 {
		return nil
	}
	params, err := tape.Parameters(c.architecture.Layers())
	if err != nil {
		return nil // the report says it
	}
	return q.Sizes(params, c.wide())
}

// wide is the type of the weights that are not quantized.
func (c *File) wide() alloc.DType { return cmp.Or(c.architecture.dtype, alloc.Float16) }

// packedIn gives inference these sizes of weights.
func packedIn(sizes map[string]quantconfig.Size) estimate.Option {
	packed := make(map[string]alloc.Bytes, len(sizes))
	for path, s := range sizes {
		packed[path] = s.Bytes
	}
	return setting.Func(func(c *setting.Config) { c.Packed = packed })
}

// Parts returns the name of the part of a pipeline that runs, and those of the parts that are held beside it; "" and none for
// what is no pipeline.
func (c *File) Parts() (runs string, held []string) {
	if p, ok := c.architecture.Images.(interface {
		Running() string
		NotTrained() []string
	}); ok {
		return p.Running(), p.NotTrained()
	}
	return "", nil
}

// base is how training holds quantized weights, by the words of estimate.Quantized; "" for weights that are not quantized, or
// not so that they are trained.
func (c *File) base() string {
	if c.architecture.quantized == nil {
		return ""
	}
	return c.architecture.quantized.Base
}

// Published says in what the weights are stored, such as "bfloat16", or "MXFP4 experts, bfloat16 the rest" where a config.json
// has a quantization_config; "" if the files do not say it.
func (c *File) Published() string {
	q := c.architecture.quantized
	switch {
	case q == nil && c.architecture.dtype == 0:
		return ""
	case q == nil:
		return c.architecture.dtype.String()
	case q.Unread != "":
		return q.Method
	}
	params, err := tape.Parameters(c.architecture.Layers())
	if err != nil {
		return q.Method
	}
	return q.Describe(params, c.wide())
}

// quantizedNote says how a report counts the weights.
func (c *File) quantizedNote() string {
	q := c.architecture.quantized
	if q.Unread != "" {
		return fmt.Sprintf("the weights are quantized (%s), and counted as if they were not, since %s: open the weights themselves", q.Method, q.Unread)
	}
	note := fmt.Sprintf("the weights are quantized (%s), and counted as the config.json says: %s", q.Method, c.Published())
	if q.Base == "" {
		note += "; training counts them as if they were not"
	}
	return note
}

// heldIn says in which base the files have the weights. Training keeps that base unless an option
// says otherwise; inference uses the weights as stored.
func heldIn(b string) estimate.Option {
	return setting.Func(func(c *setting.Config) { c.Held = b })
}

// Served returns the option with which llama.cpp serves the model, with keys and values as Cache describes them. GGUF
// weights count as stored; other weights that are not quantized count as float16, as after a conversion. The errors are
// those of Layers; it is also an error if a GGUF file has no tensor of some block, or if settings make no sense.
func (c *File) Served(cache estimate.KVConfig, by llamacpp.Server) (estimate.Option, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	sizes, err := c.layerSizes()
	if err != nil {
		return nil, err
	}
	serve, err := c.architecture.Transformer.Serve(family.Server(by), setting.KVConfig(cache), sizes)
	if err != nil {
		return nil, err
	}
	return setting.Func(serve), nil
}

// layerSizes returns the memory of the weights in each of llama.cpp's layers.
func (c *File) layerSizes() (setting.LayerSizes, error) {
	if c.Format == "GGUF" {
		return c.ggufSizes()
	}
	layers, err := c.Layers()
	if err != nil {
		return setting.LayerSizes{}, err
	}
	stored, err := llamacpp.Quantization("F16").Stored(layers)
	if err != nil {
		return setting.LayerSizes{}, err
	}
	var of setting.Config
	stored.Apply(&of)
	if held, ok := c.quantizedBytes(); ok && 5*held < 2*of.Stored.Bytes { // what is in 8 bits, such as FP8, the converter widens
		shrink(of.Sizes, held)
	}
	return *of.Sizes, nil
}

// quantizedBytes returns the memory of the weights if a config.json says that they are quantized.
func (c *File) quantizedBytes() (alloc.Bytes, bool) {
	if c.architecture.quantized != nil && len(c.tensors) > 0 {
		return c.weights().Bytes, true
	}
	sizes := c.packed()
	if len(sizes) == 0 {
		return 0, false
	}
	r, err := estimate.Model(layer.Public(c.architecture.Layers()), estimate.Precision(c.wide()), packedIn(sizes))
	if err != nil {
		return 0, false
	}
	return r.Params.Bytes, true
}

// shrink lets the blocks take what of all bytes the rest leaves: heads and embeddings are not quantized.
func shrink(s *setting.LayerSizes, all alloc.Bytes) {
	whole := alloc.Bytes(0)
	for _, size := range s.Blocks {
		whole += size
	}
	left := max(0, all-s.Input-s.Output+s.Tied)
	for i, size := range s.Blocks {
		s.Blocks[i] = alloc.Bytes(float64(left) * float64(size) / float64(max(1, whole)))
	}
}

// ggufInputs begin the names of tensors that llama.cpp counts to the input layer (src/llama-arch.cpp, LLM_TENSOR_INFOS).
var ggufInputs = []string{"token_embd", "token_types", "position_embd", "per_layer_token_embd"}

func (c *File) ggufSizes() (setting.LayerSizes, error) {
	var s setting.LayerSizes
	head := false
	for _, t := range c.tensors {
		n, inBlock := ggufBlock(t.Name)
		switch {
		case inBlock:
			if n >= len(s.Blocks) {
				s.Blocks = append(s.Blocks, make([]alloc.Bytes, n+1-len(s.Blocks))...)
			}
			s.Blocks[n] += t.Bytes
		case slices.ContainsFunc(ggufInputs, func(name string) bool { return strings.HasPrefix(t.Name, name) }):
			s.Input += t.Bytes
			if strings.HasPrefix(t.Name, "per_layer_token_embd") {
				s.PerLayer += t.Bytes
			}
			if t.Name == "token_embd.weight" {
				s.Tied = t.Bytes
			}
		default:
			s.Output += t.Bytes
			head = head || t.Name == "output.weight"
		}
	}
	if len(s.Blocks) == 0 {
		return s, fmt.Errorf("checkpoint: %s has no tensors of blocks, blk.0 and so on: it is no model that llama.cpp places by layers", c.Name)
	}
	if head {
		s.Tied = 0
	}
	s.Output += s.Tied
	return s, nil
}

// ggufBlock is the number of the block that a tensor is in.
func ggufBlock(name string) (n int, ok bool) {
	rest, ok := strings.CutPrefix(name, "blk.")
	number, _, dot := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	return n, ok && dot && err == nil && n >= 0 && n < family.MaxBlocks
}

// Projector returns the size of the weights that turn images or sound into tokens: the file that
// llama.cpp takes as --mmproj. For any other file it returns an error.
func (c *File) Projector() (alloc.Bytes, error) {
	if c.Format != "GGUF" || c.architecture.Type != projectorFamily {
		return 0, fmt.Errorf("checkpoint: %s is no projector: give a GGUF file whose general.architecture is %s, such as mmproj-model-f16.gguf", c.Name, projectorFamily)
	}
	return c.bytes(), nil
}

// projectorFamily is the architecture that projectors have.
const projectorFamily = "clip"

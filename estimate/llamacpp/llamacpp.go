// Package llamacpp is about llama.cpp, and what is built on it: how it serves a model, and in which quantizations. Package
// estimate computes what that takes of a GPU.
//
//	m, err := zoo.ByName("llama-3-8b")
//	cache, err := m.Cache(1, 8192)
//	served, err := m.Served(cache, llamacpp.Server{FlashAttention: true})
//	q, r, ok, err := llamacpp.BestQuantization(m.Layers, 8*alloc.GiB, served, estimate.Tokens(1, 512))
//
// It reads no files: package checkpoint reads GGUF. All functions may be called
// from several goroutines.
package llamacpp

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Server says how llama.cpp serves a transformer. Served, of a model of package zoo or a file of package checkpoint, makes
// an option of it: inference is llama.cpp's then. Its compute buffer replaces the memory of PyTorch's operations and of
// its allocator, and the weights are as large as llama.cpp's converter writes them, or as a GGUF file has them, with the
// embeddings in the memory of the CPU, until a later Quantization, Precision or Weights says otherwise.
// The report has no Footprint of training then.
type Server struct {
	// Slots is whether the sequences share one cache: "unified", --kv-unified, or "apart", as in releases since July 2025
	// without it. By default each has its own cells, and the compute buffer is that for all tokens.
	Slots          string
	Batch          int  // tokens that are computed at once, --ubatch-size; 0 means 512
	FlashAttention bool // scores are not held
	// Auto is whether FlashAttention is llama.cpp's own choice, --flash-attn auto, which is on where the backend can do it
	// (src/llama-context.cpp, llama_context::sched_reserve). The bounds are then for both.
	Auto bool
	// Backend is ggml's: "cuda", "vulkan", "metal", or "cpu" where there is no GPU; the report is about the memory of the CPU
	// then. Vulkan and Metal change the order of the operations, and with it the compute buffer, in ways that are not
	// computed. "" is not known: the bounds allow for it.
	Backend string
	// Build is the number of llama.cpp's build, such as 8179 of early 2026; 0 means the newest that is known, v0.5.0 of late
	// 2026, with bounds that allow for those of the last year.
	Build int
	// Outputs is of how many of a batch's tokens the logits are computed; 0 means of all, as llama.h has it. The bounds then
	// allow for one of each sequence.
	Outputs int
	// GPULayers is how many layers a GPU holds, with their keys and values, --n-gpu-layers: the blocks from the last to the
	// first, after the output, which is one more layer (src/llama-model.cpp, load_tensors, since pull request 18148 of
	// December 2025; before it the output came last). 0 means all, and less than 0 none. Layers with a window and recurrent
	// layers are taken to be on the GPU in the same proportion as all others. Memory.Host has the rest.
	GPULayers int
	// Split are the proportions by which several GPUs share these layers, --tensor-split. The report is then about the one
	// that needs most.
	Split []float64
	// Projector is the size of the weights that turn images into tokens, --mmproj, which are all on the GPU.
	Projector alloc.Bytes
}

// Stored returns the option that stores a model's weights as a GGUF file of this mixture does, for inference. Vectors stay
// in float32, and a matrix whose rows its type does not divide gets the next wider type that does. The error says that
// there is no such Quantization, or is that of Model for layers that are not valid.
func (q Quantization) Stored(layers []nn.Layer) (estimate.Option, error) {
	var a setting.Amount
	var s setting.LayerSizes
	var embedding alloc.Bytes
	head := false
	mixture, err := q.mixture()
	if err != nil {
		return nil, err
	}
	err = mixture.each(layers, func(w quantizedWeight) {
		a.Count += w.elements
		a.Bytes += w.bytes
		n, inBlock := setting.NumberIn(w.path)
		switch {
		case inBlock && n < tape.MaxLayers:
			if n >= len(s.Blocks) {
				s.Blocks = append(s.Blocks, make([]alloc.Bytes, n+1-len(s.Blocks))...)
			}
			s.Blocks[n] += w.bytes
		case w.embedding:
			s.Input += w.bytes
			embedding = max(embedding, w.bytes)
		default:
			s.Output += w.bytes
			head = head || w.head
		}
	})
	if err != nil {
		return nil, err
	}
	if !head {
		s.Tied = embedding
		s.Output += embedding
	}
	return setting.Func(func(c *setting.Config) { c.Stored, c.Sizes = a, &s }), nil
}

// quantizedWeight is a parameter as a GGUF file has it.
type quantizedWeight struct {
	path            string // of its layer
	elements        int64
	bytes           alloc.Bytes
	embedding, head bool
}

// each calls a function for each parameter.
func (q mixture) each(layers []nn.Layer, of func(quantizedWeight)) error {
	params, err := tape.Parameters(layer.From(layers))
	if e := (*tape.LayerError)(nil); errors.As(err, &e) {
		return (*estimate.LayerError)(e)
	}
	if err != nil {
		return err
	}
	q.hold(params, of)
	return nil
}

// hold calls each with the size of every parameter.
func (q mixture) hold(params []tape.Parameter, each func(quantizedWeight)) {
	blocks, head := shapeOf(params)
	values, outputs, experts := rowsOf(params, "v_proj"), rowsOf(params, "q_proj"), rowsOf(params, "gate")
	embedded := false
	for i := range params {
		p := &params[i]
		if p.Buffer || p.Tied != "" {
			continue
		}
		m := matrix{roleOf(p), blockOf(p.Path), blocks, outputs / max(1, values), experts}
		of := q.base
		isEmbedding := p.Kind == "Embedding"
		switch {
		case len(p.Shape) < 2 || isEmbedding && embedded || p.Kind == "Router":
			of = typeF32
		case i == head || isEmbedding && head < 0:
			of = q.output
		case !isEmbedding:
			of = q.of(m)
		}
		embedded = embedded || isEmbedding
		each(quantizedWeight{p.Path, p.Elements, hold(of, p.Elements, p.Shape), isEmbedding, i == head})
	}
}

// hold returns the size of n elements, in a type whose blocks divide the rows.
func hold(b setting.Blocks, n int64, shape alloc.Shape) alloc.Bytes {
	row := 1
	if len(shape) > 0 {
		row = shape[len(shape)-1]
	}
	if row%b.Elements != 0 {
		narrow := map[setting.Blocks]setting.Blocks{typeQ2K: setting.Q4_0, typeQ3K: setting.Q4_0, typeQ4K: setting.Q5_0, typeQ5K: setting.Q5_1, typeQ6K: setting.Q8_0}
		if b = setting.Or(narrow[b], typeF16); row%b.Elements != 0 {
			b = typeF16
		}
	}
	return alloc.Bytes(n / int64(b.Elements) * int64(b.Bytes))
}

// shapeOf is the number of blocks, and the index of the output head's weight, -1 where it is tied.
func shapeOf(params []tape.Parameter) (blocks, head int) {
	head = -1
	for i := range params {
		p := &params[i]
		blocks = max(blocks, blockOf(p.Path)+1)
		if len(p.Shape) == 2 && !p.Buffer {
			if head = i; p.Tied != "" {
				head = -1
			}
		}
	}
	return blocks, head
}

// rowsOf is the first dimension of the first weight of a layer of that name.
func rowsOf(params []tape.Parameter, name string) int {
	for i := range params {
		if p := &params[i]; len(p.Shape) == 2 && path.Ext("."+p.Path) == "."+name {
			return p.Shape[0]
		}
	}
	return 0
}

// roleOf returns the role by the names that transformers gives the layers.
func roleOf(p *tape.Parameter) role {
	at := p.Path
	name := at[strings.LastIndexByte(at, '.')+1:]
	if name == "experts" {
		name = p.Name
	}
	mlp := strings.Contains(at, "mlp")
	switch {
	case name == "k_proj":
		return keyRole
	case name == "v_proj":
		return valueRole
	case name == "qkv_proj" || name == "c_attn" || name == "query_key_value":
		return packedRole
	case name == "o_proj" || !mlp && (name == "c_proj" || name == "dense" || name == "out_proj"):
		return attentionOutput
	case name == "down_proj" || name == "fc2" || name == "dense_4h_to_h" || mlp && name == "c_proj":
		return downRole
	}
	return otherRole
}

// blockOf returns the number of the block in a path.
func blockOf(at string) int {
	n, _ := setting.NumberIn(at)
	return n
}

// BestQuantization returns the widest of the Quantizations with which the model fits into the
// budget, and the Report for it. The third result is false if none fits. The options are those of
// estimate.Model; a Served among them says that llama.cpp serves the model. The errors are those
// of estimate.Model. The option Train is an error too, because quantized weights are not trained.
func BestQuantization(layers []nn.Layer, budget alloc.Bytes, opts ...estimate.Option) (Quantization, *estimate.Report, bool, error) {
	var asked setting.Config
	look := setting.Func(func(c *setting.Config) { asked = *c })
	for _, q := range slices.Backward(Quantizations()) {
		stored, err := q.Stored(layers)
		if err != nil {
			return "", nil, false, err
		}
		r, err := estimate.Model(layers, append(slices.Clip(opts), look, stored)...)
		if asked.Training {
			return "", nil, false, fmt.Errorf("estimate %s: quantized weights are not trained: leave Train out", asked.Name)
		}
		if err != nil {
			return "", nil, false, fmt.Errorf("%v: %w", q, err)
		}
		if r.Fits(budget) {
			return q, r, true, nil
		}
	}
	return "", nil, false, nil
}

// Quantization is one of the mixtures of types that llama.cpp's llama-quantize makes, such as
// "Q4_K_M": most matrices in one type, and some that matter more in wider ones. Quantizations lists those that are known.
type Quantization string

// mixture is what a Quantization means.
type mixture struct {
	name         Quantization
	base, output setting.Blocks
	wider        func(m matrix) setting.Blocks // zero for the base
}

// matrix is a matrix of a model as llama-quantize sees it.
type matrix struct {
	role   role
	block  int // the block that it is in
	blocks int
	heads  int // heads of queries for each head of keys and values
	expert int // number of experts in the model
}

// role says what a matrix does.
type role uint8

const (
	otherRole role = iota
	keyRole
	valueRole
	packedRole // queries, keys and values
	attentionOutput
	downRole // of an MLP
)

// The types that hold weights, as ggml stores them (ggml/src/ggml-common.h).
var (
	typeQ2K = setting.Blocks{Elements: 256, Bytes: 84}
	typeQ3K = setting.Blocks{Elements: 256, Bytes: 110}
	typeQ4K = setting.Blocks{Elements: 256, Bytes: 144}
	typeQ5K = setting.Blocks{Elements: 256, Bytes: 176}
	typeQ6K = setting.Blocks{Elements: 256, Bytes: 210}
	typeF16 = setting.Blocks{Elements: 1, Bytes: 2}
	typeF32 = setting.Blocks{Elements: 1, Bytes: 4}
)

// mixtures are the quantizations by name, smallest first. They give the same matrices more bits as llama.cpp does
// (src/llama-quant.cpp, llama_tensor_get_type).
var mixtures = []mixture{
	{"Q2_K", typeQ2K, typeQ6K, func(m matrix) setting.Blocks {
		switch m.role {
		case valueRole:
			if m.heads >= 4 {
				return typeQ4K
			}
			return typeQ3K
		case downRole, attentionOutput:
			return typeQ3K
		}
		return setting.Blocks{}
	}},
	{"Q3_K_S", typeQ3K, typeQ6K, nil},
	{"Q3_K_M", typeQ3K, typeQ6K, func(m matrix) setting.Blocks {
		switch {
		case m.role == valueRole && m.block < 2, m.role == downRole && m.block < m.blocks/16:
			return typeQ5K
		case m.role != otherRole && m.role != keyRole:
			return typeQ4K
		}
		return setting.Blocks{}
	}},
	{"Q3_K_L", typeQ3K, typeQ6K, func(m matrix) setting.Blocks {
		switch m.role {
		case valueRole, downRole, attentionOutput:
			return typeQ5K
		case packedRole:
			return typeQ4K
		}
		return setting.Blocks{}
	}},
	{"Q4_0", setting.Q4_0, typeQ6K, nil},
	{"Q4_K_S", typeQ4K, typeQ6K, func(m matrix) setting.Blocks {
		if m.role == valueRole && m.block < 4 || m.role == downRole && m.block < m.blocks/8 {
			return typeQ5K
		}
		return setting.Blocks{}
	}},
	{"Q4_K_M", typeQ4K, typeQ6K, func(m matrix) setting.Blocks { return m.more(typeQ5K) }},
	{"Q5_0", setting.Q5_0, typeQ6K, nil},
	{"Q5_K_S", typeQ5K, typeQ6K, nil},
	{"Q5_K_M", typeQ5K, typeQ6K, func(m matrix) setting.Blocks { return m.more(typeQ6K) }},
	{"Q6_K", typeQ6K, typeQ6K, nil},
	{"Q8_0", setting.Q8_0, setting.Q8_0, nil},
	{"F16", typeF16, typeF16, nil},
}

// of returns the type of a matrix. Models with few heads of keys and values, or with eight experts,
// store these in wider types.
func (q mixture) of(m matrix) setting.Blocks {
	b := q.base
	if q.wider != nil {
		b = setting.Or(q.wider(m), b)
	}
	switch {
	case q.base == typeF16:
		return b
	case m.expert == 8 && (m.role == keyRole || m.role == valueRole):
		return setting.Q8_0
	case m.expert == 8 && m.role == attentionOutput && (q.base == typeQ2K || q.base == typeQ3K || q.base == typeQ4K):
		return typeQ5K
	case m.blocks == 80 && m.heads > 1 && m.role == valueRole && (b == typeQ3K || b == typeQ4K):
		return typeQ5K
	}
	return b
}

// more widens the values and the ends of MLPs in half of the blocks, and packed projections.
func (m matrix) more(packed setting.Blocks) setting.Blocks {
	eighth := m.blocks / 8
	half := m.block < eighth || m.block >= 7*m.blocks/8 || (m.block-eighth)%3 == 2
	switch {
	case m.role == packedRole:
		return packed
	case half && (m.role == valueRole || m.role == downRole):
		return typeQ6K
	}
	return setting.Blocks{}
}

// Quantizations returns the mixtures that are known, smallest first.
func Quantizations() []Quantization {
	names := make([]Quantization, len(mixtures))
	for i, m := range mixtures {
		names[i] = m.name
	}
	return names
}

func (q Quantization) mixture() (mixture, error) {
	i := slices.IndexFunc(mixtures, func(m mixture) bool { return m.name == q })
	if i < 0 {
		return mixture{}, fmt.Errorf("estimate: no Quantization is named %q: want one of %v", string(q), Quantizations())
	}
	return mixtures[i], nil
}

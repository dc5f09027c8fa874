package estimate

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Quantization is one of the mixtures of types that llama.cpp's llama-quantize makes, such as
// Q4_K_M: most matrices in one type, and some that matter more in wider ones.
type Quantization struct {
	Name string

	base, output Blocks
	wider        func(m matrix) Blocks // zero for the base
}

// matrix is a matrix of a model as llama-quantize sees it.
type matrix struct {
	role   role
	block  int // that it is in
	blocks int
	heads  int // of queries for each of keys and values
	expert int // of the model
}

// role is what a matrix does.
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
	typeQ2K = Blocks{256, 84}
	typeQ3K = Blocks{256, 110}
	typeQ4K = Blocks{256, 144}
	typeQ5K = Blocks{256, 176}
	typeQ6K = Blocks{256, 210}
	typeF16 = Blocks{1, 2}
	typeF32 = Blocks{1, 4}
)

// quantizations are the mixtures, smallest first. Which matrices are wider is as in llama.cpp
// (src/llama-quant.cpp, llama_tensor_get_type).
var quantizations = []Quantization{
	{"Q2_K", typeQ2K, typeQ6K, func(m matrix) Blocks {
		switch m.role {
		case valueRole:
			if m.heads >= 4 {
				return typeQ4K
			}
			return typeQ3K
		case downRole, attentionOutput:
			return typeQ3K
		}
		return Blocks{}
	}},
	{"Q3_K_S", typeQ3K, typeQ6K, nil},
	{"Q3_K_M", typeQ3K, typeQ6K, func(m matrix) Blocks {
		switch {
		case m.role == valueRole && m.block < 2, m.role == downRole && m.block < m.blocks/16:
			return typeQ5K
		case m.role != otherRole && m.role != keyRole:
			return typeQ4K
		}
		return Blocks{}
	}},
	{"Q3_K_L", typeQ3K, typeQ6K, func(m matrix) Blocks {
		switch m.role {
		case valueRole, downRole, attentionOutput:
			return typeQ5K
		case packedRole:
			return typeQ4K
		}
		return Blocks{}
	}},
	{"Q4_0", Q4_0, typeQ6K, nil},
	{"Q4_K_S", typeQ4K, typeQ6K, func(m matrix) Blocks {
		if m.role == valueRole && m.block < 4 || m.role == downRole && m.block < m.blocks/8 {
			return typeQ5K
		}
		return Blocks{}
	}},
	{"Q4_K_M", typeQ4K, typeQ6K, func(m matrix) Blocks { return m.more(typeQ5K) }},
	{"Q5_0", Q5_0, typeQ6K, nil},
	{"Q5_K_S", typeQ5K, typeQ6K, nil},
	{"Q5_K_M", typeQ5K, typeQ6K, func(m matrix) Blocks { return m.more(typeQ6K) }},
	{"Q6_K", typeQ6K, typeQ6K, nil},
	{"Q8_0", Q8_0, Q8_0, nil},
	{"F16", typeF16, typeF16, nil},
}

// of is the type of a matrix. Few heads of keys and values, and those of eight experts, are
// worth wider types.
func (q Quantization) of(m matrix) Blocks {
	b := q.base
	if q.wider != nil {
		b = or(q.wider(m), b)
	}
	switch {
	case q.base == typeF16:
		return b
	case m.expert == 8 && (m.role == keyRole || m.role == valueRole):
		return Q8_0
	case m.expert == 8 && m.role == attentionOutput && (q.base == typeQ2K || q.base == typeQ3K || q.base == typeQ4K):
		return typeQ5K
	case m.blocks == 80 && m.heads > 1 && m.role == valueRole && (b == typeQ3K || b == typeQ4K):
		return typeQ5K
	}
	return b
}

// more widens the values and the ends of MLPs in half of the blocks, and packed projections.
func (m matrix) more(packed Blocks) Blocks {
	eighth := m.blocks / 8
	half := m.block < eighth || m.block >= 7*m.blocks/8 || (m.block-eighth)%3 == 2
	switch {
	case m.role == packedRole:
		return packed
	case half && (m.role == valueRole || m.role == downRole):
		return typeQ6K
	}
	return Blocks{}
}

// Quantizations returns the mixtures that are known, smallest first.
func Quantizations() []Quantization { return slices.Clone(quantizations) }

// String is the name.
func (q Quantization) String() string { return q.Name }

// Stored returns the parameters of a model and the size that a GGUF file of this mixture has
// for them, for the option Stored. Vectors stay in float32, and a matrix whose rows its type
// does not divide gets the next wider type that does. The error is that of Model for layers
// that are not valid.
func (q Quantization) Stored(layers []Layer) (Amount, error) {
	cfg, err := newConfig(nil)
	if err != nil {
		return Amount{}, err
	}
	decl := newDeclaration(&scratch{index: make(map[string]int)}, cfg)
	if err := decl.run(Sequential(layers), cfg.name); err != nil {
		return Amount{}, err
	}
	if _, err := weigh(decl, cfg); err != nil { // no sum below can overflow
		return Amount{}, err
	}
	return decl.quantized(q), nil
}

// quantized adds up what the parameters take.
func (d *Declaration) quantized(q Quantization) Amount {
	blocks, head := d.blocks()
	values, outputs, experts := d.rowsOf("v_proj"), d.rowsOf("q_proj"), d.rowsOf("gate")
	var a Amount
	embedded := false
	for i := range d.params {
		p := &d.params[i]
		if p.Buffer || p.Tied != "" {
			continue
		}
		m := matrix{d.roleOf(p), blockOf(d.modules[p.module].path), blocks, outputs / max(1, values), experts}
		of := q.base
		isEmbedding := d.modules[p.module].kind == "Embedding"
		switch {
		case len(p.Shape) < 2 || isEmbedding && embedded || d.modules[p.module].kind == "Router":
			of = typeF32
		case i == head || isEmbedding && head < 0:
			of = q.output
		case !isEmbedding:
			of = q.of(m)
		}
		embedded = embedded || isEmbedding
		a.Count += p.elements
		a.Bytes += of.hold(p.elements, p.Shape)
	}
	return a
}

// hold is the size of so many elements, in a type that divides the rows.
func (b Blocks) hold(n int64, shape alloc.Shape) alloc.Bytes {
	row := 1
	if len(shape) > 0 {
		row = shape[len(shape)-1]
	}
	if row%b.Elements != 0 {
		narrow := map[Blocks]Blocks{typeQ2K: Q4_0, typeQ3K: Q4_0, typeQ4K: Q5_0, typeQ5K: Q5_1, typeQ6K: Q8_0}
		if b = or(narrow[b], typeF16); row%b.Elements != 0 {
			b = typeF16
		}
	}
	return alloc.Bytes(n / int64(b.Elements) * int64(b.Bytes))
}

// blocks is the number of blocks, and the index of the output head's weight, -1 where it is tied.
func (d *Declaration) blocks() (n, head int) {
	head = -1
	for i := range d.params {
		p := &d.params[i]
		n = max(n, blockOf(d.modules[p.module].path)+1)
		if len(p.Shape) == 2 && !p.Buffer {
			if head = i; p.Tied != "" {
				head = -1
			}
		}
	}
	return n, head
}

// rowsOf is the first dimension of the first weight of a layer of that name.
func (d *Declaration) rowsOf(name string) int {
	for i := range d.params {
		if p := &d.params[i]; len(p.Shape) == 2 && path.Ext("."+d.modules[p.module].path) == "."+name {
			return p.Shape[0]
		}
	}
	return 0
}

// roleOf tells the role by the names that transformers gives the layers.
func (d *Declaration) roleOf(p *ownedParam) role {
	at := d.modules[p.module].path
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

// blockOf is the first number in a path: that of the block.
func blockOf(at string) int {
	for part := range strings.SplitSeq(at, ".") {
		if n, err := strconv.Atoi(part); err == nil {
			return n
		}
	}
	return 0
}

// BestQuantization returns the widest of the Quantizations with which the model fits into the
// budget, and what Model reports of it. It reports false where none does. The options are those of
// Model; ComputedIn among them says that llama.cpp serves it. The error is that of Model; Train
// is one too, since quantized weights are not trained.
func BestQuantization(layers []Layer, budget alloc.Bytes, opts ...Option) (Quantization, *Report, bool, error) {
	for _, q := range slices.Backward(quantizations) {
		stored, err := q.Stored(layers)
		if err != nil {
			return Quantization{}, nil, false, err
		}
		r, err := Model(layers, append(opts[:len(opts):len(opts)], Stored(stored))...)
		if err != nil {
			return Quantization{}, nil, false, fmt.Errorf("%v: %w", q, err)
		}
		if r.training {
			return Quantization{}, nil, false, fmt.Errorf("estimate %s: quantized weights are not trained: leave Train out", r.Name)
		}
		if r.Fits(budget) {
			return q, r, true, nil
		}
	}
	return Quantization{}, nil, false, nil
}

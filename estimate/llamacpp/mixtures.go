package llamacpp

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

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

// quantizations are the mixtures, smallest first. Which matrices are wider is as in llama.cpp
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

package llamacpp

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// tensor is a tensor of a GGUF file.
type tensor struct {
	path     string // of the module in transformers
	category category
	elements int64
	row      int  // elements of a row
	matrices bool // one for each expert, or for each head
	input    bool // belongs to the input layer
}

// category is what llama-quantize calls a tensor's category (src/llama-quant.cpp, tensor_get_category).
type category uint8

const (
	isOther category = iota
	isWide           // not quantized: vectors, routers, convolutions, positions
	isEmbedding
	isOutput
	isQuery
	isKey
	isValue
	isPacked // queries, keys and values
	isAttentionOutput
	isUp
	isGate
	isDown
)

// tensorsOf are the tensors that llama.cpp's converter makes of parameters, in their order: an expert's first projection
// becomes two, and so does the projection of latent keys and values.
func tensorsOf(params []tape.Parameter) []tensor {
	head, embedded := headOf(params), false
	var all []tensor
	for i := range params {
		p := &params[i]
		if p.Buffer || p.Tied != "" {
			continue
		}
		t := tensor{path: p.Path, elements: p.Elements, row: 1, category: isWide, input: p.Kind == "Embedding"}
		if len(p.Shape) > 0 {
			t.row = p.Shape[len(p.Shape)-1]
		}
		switch {
		case i == head:
			t.category = isOutput
		case len(p.Shape) == 3 && strings.HasPrefix(p.Kind, "Experts"):
			all = append(all, experts(t, params, i)...)
			continue
		case len(p.Shape) != 2 || p.Kind == "Router":
		case p.Kind == "Embedding":
			if !embedded || strings.HasSuffix(p.Path, "per_layer") { // else positions, and types of tokens
				t.category = isEmbedding
			}
			embedded = true
		case p.Kind == "Linear" && strings.HasSuffix(p.Path, "kv_b_proj"):
			all = append(all, latent(t, params, i)...)
			continue
		case p.Kind == "Linear" && p.Name == "weight":
			t.category = categoryOf(p.Path)
		}
		all = append(all, t)
	}
	return all
}

// headOf is the index of the output head's weight, -1 where it is tied.
func headOf(params []tape.Parameter) int {
	head := -1
	for i := range params {
		p := &params[i]
		if len(p.Shape) == 2 && !p.Buffer {
			if head = i; p.Tied != "" {
				head = -1
			}
		}
	}
	return head
}

// experts are the tensors of a weight of all experts.
func experts(t tensor, params []tape.Parameter, i int) []tensor {
	p := &params[i]
	t.matrices = true
	if isTransposed(params, i) {
		t.row = p.Shape[1]
	}
	if p.Name != "gate_up_proj" {
		t.category = categoryOf(p.Name)
		return []tensor{t}
	}
	gate, up := t, t
	gate.category, gate.elements = isGate, t.elements/2
	up.category, up.elements = isUp, t.elements-gate.elements
	return []tensor{gate, up}
}

// isTransposed reports whether the experts have a row for each input, as the first projection shows.
func isTransposed(params []tape.Parameter, i int) bool {
	up, down := besides(params, i, "gate_up_proj"), besides(params, i, "down_proj")
	return up != nil && down != nil && len(up.Shape) == 3 && len(down.Shape) == 3 && up.Shape[1] == down.Shape[2] && up.Shape[2] == 2*down.Shape[1]
}

// besides returns the parameter of a name in the same module.
func besides(params []tape.Parameter, i int, name string) *tape.Parameter {
	for j := max(0, i-4); j < min(len(params), i+5); j++ {
		if params[j].Path == params[i].Path && params[j].Name == name {
			return &params[j]
		}
	}
	return nil
}

// latent are the two tensors of the projection of latent keys and values: for each head a matrix to the keys, whose rows are
// as long as a key without its rotated part, and one to the values, whose rows are as long as the latent vector (the
// converter since April 2025).
func latent(t tensor, params []tape.Parameter, i int) []tensor {
	at := strings.TrimSuffix(params[i].Path, "kv_b_proj")
	of := map[string][2]int{} // outputs and inputs
	for j := max(0, i-16); j < min(len(params), i+17); j++ {
		if p := &params[j]; strings.HasPrefix(p.Path, at) && p.Name == "weight" && len(p.Shape) == 2 {
			of[p.Path[len(at):]] = [2]int{p.Shape[0], p.Shape[1]}
		}
	}
	all, rank := params[i].Shape[0], params[i].Shape[1]
	values := of["o_proj"][1]
	queries := setting.Or(of["q_b_proj"][0], of["q_proj"][0])
	rotated := of["kv_a_proj_with_mqa"][0] - rank
	keys := all - values
	if rotated <= 0 || keys <= 0 || queries <= keys || (queries-keys)%rotated != 0 {
		return []tensor{t}
	}
	heads := (queries - keys) / rotated
	k, v := t, t
	k.category, k.matrices, k.row, k.elements = isOther, true, max(1, keys/heads), int64(keys)*int64(rank)
	v.category, v.matrices, v.elements = isOther, true, t.elements-k.elements
	return []tensor{k, v}
}

// categoryOf returns the category by the names that transformers gives the layers.
func categoryOf(at string) category {
	parts := strings.Split(at, ".")
	name, of := parts[len(parts)-1], ""
	if len(parts) > 1 {
		of = parts[len(parts)-2]
	}
	mlp := strings.Contains(of, "mlp") || strings.Contains(of, "ffn") || strings.Contains(of, "feed_forward") || strings.Contains(of, "expert")
	attention := strings.Contains(of, "attn") && of != "linear_attn" || strings.Contains(of, "attention")
	switch name {
	case "q_proj":
		return isQuery
	case "k_proj":
		return isKey
	case "v_proj":
		return isValue
	case "qkv_proj", "c_attn", "query_key_value", "Wqkv", "in_proj_qkv":
		return isPacked
	case "o_proj":
		return isAttentionOutput
	case "dense", "out_proj":
		if attention {
			return isAttentionOutput
		}
	case "c_proj":
		if mlp {
			return isDown
		}
		return isAttentionOutput
	case "up_proj", "gate_up_proj", "fc1", "dense_h_to_4h", "c_fc", "w3":
		return isUp
	case "gate_proj", "w1":
		return isGate
	case "down_proj", "fc2", "dense_4h_to_h", "w2":
		return isDown
	}
	if strings.HasSuffix(at, "per_layer_model_projection") || strings.Contains(at, "altup") || strings.Contains(at, "laurel") || name == "shared_expert_gate" {
		return isWide
	}
	return isOther
}

// model is what llama-quantize looks at of a model.
type model struct {
	blocks   int
	attends  int // tensors that project to values, alone or with others
	heads    int // heads of queries for each head of keys and values
	experts  int
	hasHead  bool
	isFalcon bool
}

// modelOf returns what the tensors say.
func modelOf(params []tape.Parameter, tensors []tensor) model {
	m := model{heads: 1}
	for i := range params {
		p := &params[i]
		if n, ok := setting.NumberIn(p.Path); ok {
			m.blocks = max(m.blocks, n+1)
		}
		if p.Kind == "Router" && len(p.Shape) == 2 {
			m.experts = p.Shape[0]
		}
		m.isFalcon = m.isFalcon || p.Path == "transformer.word_embeddings"
	}
	for i := range params {
		m.isFalcon = m.isFalcon && params[i].Path != "transformer.word_embeddings_layernorm" // which is BLOOM's
	}
	queries, values, packed := rows(params, "q_proj"), rows(params, "v_proj"), 0
	for _, t := range tensors {
		m.hasHead = m.hasHead || t.category == isOutput
		if t.category == isValue || t.category == isPacked {
			m.attends++
		}
	}
	if values > 0 {
		m.heads = queries / values
	}
	for _, name := range []string{"qkv_proj", "query_key_value", "Wqkv"} {
		packed = max(packed, rows(params, name))
	}
	if width := max(columns(params, "o_proj"), columns(params, "dense"), columns(params, "out_proj")); values == 0 && packed > width && width > 0 {
		m.heads = max(1, 2*width/(packed-width))
	}
	if rows(params, "kv_b_proj") > 0 {
		m.heads = many // the latent vector counts as one head
	}
	return m
}

// many is more heads than the rules tell apart.
const many = 16

// rows is the first dimension of the first weight of a layer of that name.
func rows(params []tape.Parameter, name string) int { return dimension(params, name, 0) }

// columns is the second one.
func columns(params []tape.Parameter, name string) int { return dimension(params, name, 1) }

func dimension(params []tape.Parameter, name string, i int) int {
	for j := range params {
		if p := &params[j]; len(p.Shape) == 2 && strings.HasSuffix("."+p.Path, "."+name) {
			return p.Shape[i]
		}
	}
	return 0
}

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

// roleOf tells the role by the names that transformers gives the layers.
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
		r, err := estimate.Model(layers, append(opts[:len(opts):len(opts)], look, stored)...)
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

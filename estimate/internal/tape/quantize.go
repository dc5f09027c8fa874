package tape

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Stored returns the parameters of a model and the size that a GGUF file of this mixture has
// for them, for the option Stored. Vectors stay in float32, and a matrix whose rows its type
// does not divide gets the next wider type that does. The error is that of Model for layers
// that are not valid.
func (q Quantization) Stored(layers []Layer) (Amount, error) {
	var a Amount
	err := q.each(layers, func(w quantizedWeight) {
		a.Count += w.elements
		a.Bytes += w.bytes
	})
	return a, err
}

// Layers returns the same sizes by what llama.cpp calls layers, for the option StoredIn. The error is that
// of Stored.
func (q Quantization) Layers(layers []Layer) (LayerSizes, error) {
	var s LayerSizes
	var embedding alloc.Bytes
	head := false
	err := q.each(layers, func(w quantizedWeight) {
		n, inBlock := numberIn(w.path)
		switch {
		case inBlock && n < MaxLayers:
			s.add(n, w.bytes)
		case w.embedding:
			s.Input += w.bytes
			embedding = max(embedding, w.bytes)
		default:
			s.Output += w.bytes
			head = head || w.head
		}
	})
	if !head {
		s.tie(embedding)
	}
	return s, err
}

// quantizedWeight is a parameter as a GGUF file has it.
type quantizedWeight struct {
	path            string // of its layer
	elements        int64
	bytes           alloc.Bytes
	embedding, head bool
}

// each calls a function for each parameter.
func (q Quantization) each(layers []Layer, of func(quantizedWeight)) error {
	if q.base == (Blocks{}) {
		return fmt.Errorf("estimate: the zero Quantization has no types: take one of Quantizations")
	}
	cfg, err := NewConfig(nil)
	if err != nil {
		return err
	}
	decl := NewDeclaration(&Scratch{index: make(map[string]int)}, cfg)
	if err := decl.Run(Sequential(layers), cfg.Name); err != nil {
		return err
	}
	if _, err := Weigh(decl, cfg); err != nil { // no sum can overflow
		return err
	}
	decl.quantized(q, of)
	return nil
}

// quantized calls a function for what each parameter takes.
func (d *Declaration) quantized(q Quantization, each func(quantizedWeight)) {
	blocks, head := d.blocks()
	values, outputs, experts := d.rowsOf("v_proj"), d.rowsOf("q_proj"), d.rowsOf("gate")
	embedded := false
	for i := range d.params {
		p := &d.params[i]
		if p.Buffer || p.Tied != "" {
			continue
		}
		m := matrix{d.roleOf(p), blockOf(d.Modules[p.module].Path), blocks, outputs / max(1, values), experts}
		of := q.base
		isEmbedding := d.Modules[p.module].Kind == "Embedding"
		switch {
		case len(p.Shape) < 2 || isEmbedding && embedded || d.Modules[p.module].Kind == "Router":
			of = typeF32
		case i == head || isEmbedding && head < 0:
			of = q.output
		case !isEmbedding:
			of = q.of(m)
		}
		embedded = embedded || isEmbedding
		each(quantizedWeight{d.Modules[p.module].Path, p.elements, of.hold(p.elements, p.Shape), isEmbedding, i == head})
	}
}

// hold is the size of so many elements, in a type that divides the rows.
func (b Blocks) hold(n int64, shape alloc.Shape) alloc.Bytes {
	row := 1
	if len(shape) > 0 {
		row = shape[len(shape)-1]
	}
	if row%b.Elements != 0 {
		narrow := map[Blocks]Blocks{typeQ2K: Q4_0, typeQ3K: Q4_0, typeQ4K: Q5_0, typeQ5K: Q5_1, typeQ6K: Q8_0}
		if b = Or(narrow[b], typeF16); row%b.Elements != 0 {
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
		n = max(n, blockOf(d.Modules[p.module].Path)+1)
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
		if p := &d.params[i]; len(p.Shape) == 2 && path.Ext("."+d.Modules[p.module].Path) == "."+name {
			return p.Shape[0]
		}
	}
	return 0
}

// roleOf tells the role by the names that transformers gives the layers.
func (d *Declaration) roleOf(p *ownedParam) role {
	at := d.Modules[p.module].Path
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
	n, _ := numberIn(at)
	return n
}

// numberIn is the first number in a path.
func numberIn(at string) (n int, ok bool) {
	for part := range strings.SplitSeq(at, ".") {
		if n, err := strconv.Atoi(part); err == nil && n >= 0 {
			return n, true
		}
	}
	return 0, false
}

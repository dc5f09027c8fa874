package family

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Step35 is GLM-4.5 with a gate for each head, and other numbers of query heads in blocks with a window (Step 3.5,
// modeling_step3p5.py beside its weights), read from GGUF files alone.
var Step35 = &Family{
	Name:  "Step 3.5",
	style: style{attention: stepAttention, block: stepBlock},
	GGUF:  []GGUF{{Name: "step35", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Blocks: true, Heads: true, Read: ggufStep35}},
}

// stepHeads is the number of query heads in blocks with a window.
type stepHeads struct{ windowed int }

func stepAttention(c Transformer, a *layer.Attention) {
	a.Rotations = 1 // one table for each width
	if own := Own[stepHeads](c); own != nil && a.Window > 0 {
		a.Heads = own.windowed
		return
	}
	a.RotaryDim = a.Size() / 2
}

func stepBlock(_ Transformer, b blockParts) tape.Layer {
	if a, ok := b.attention.Layer.(layer.Attention); ok {
		b.attention.Layer = gatedHeads{a}
	}
	return normedBefore(b, "", "")
}

// gatedHeads is attention in which a gate weighs each head.
type gatedHeads struct{ layer.Attention }

func (gatedHeads) Kind() string { return "Attention" }

// parts returns attention without the projection of its output, the gates and that projection.
func (l gatedHeads) parts() (a layer.Attention, gates, out layer.Linear) {
	a = l.Attention
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj"}
	gates = layer.Linear{In: a.Hidden, Out: a.Heads, NoBias: true, Split: layer.ByColumns}
	return a, gates, layer.Linear{In: a.Heads * a.Size(), Out: a.Hidden, NoBias: true, Split: layer.ByRows}
}

func (l gatedHeads) Declare(d *tape.Declaration) {
	a, gates, out := l.parts()
	a.Declare(d)
	d.Layer("g_proj", gates)
	d.Layer("o_proj", out)
}

func (l gatedHeads) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	a, gates, out := l.parts()
	y := a.Forward(t, x)
	gate := t.Call("g_proj", gates, x)
	gate = layer.KeepOutput(t, t.Op(tape.Op{In: []tape.Tensor{gate}, Shape: gate.Shape}))
	y = t.Op(tape.Op{In: []tape.Tensor{y, gate}, Shape: y.Shape, Keep: []tape.Tensor{y, gate}})
	return t.Call("o_proj", out, y)
}

// ggufStep35 reads which blocks have a window, and how many heads these and the others have.
func ggufStep35(m *Metadata, a *Model) {
	ggufBest(m, a)
	m.must(&a.Window, "attention.sliding_window")
	windows := m.byBlock(a, "attention.sliding_window_pattern")
	heads, kv := m.headsByWindow(a, windows, "attention.head_count"), m.headsByWindow(a, windows, "attention.head_count_kv")
	switch {
	case m.err != nil:
		return
	case kv[0] != kv[1]:
		m.keep(&Error{Where: "metadata", Reason: fmt.Sprintf("%d heads of keys and values in blocks without a window and %d in those with one", kv[0], kv[1]), Err: ErrUnknown})
	case !m.has("blk.0.attn_gate.weight") || !m.has("blk.0.attn_q_norm.weight") || a.HeadSize < 1:
		m.keep(&Error{Where: "metadata", Reason: "attention without gates, norms of queries or a size of heads", Err: ErrUnknown})
	}
	a.mark(Windowed, func(block int) bool { return windows[block] != 0 })
	a.mark(Sparse, func(block int) bool { return m.has(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", block)) })
	a.Own, a.Heads, a.DenseBlocks = &stepHeads{heads[1]}, heads[0], 0
}

// headsByWindow returns the numbers of heads in blocks without and with a window. If those of a kind differ, or there is no
// block of a kind, it keeps an error.
func (m *Metadata) headsByWindow(a *Model, windows []int, key string) (heads [2]int) {
	if m.err != nil {
		return heads
	}
	all := m.Numbers(m.architecture + "." + key)
	if len(all) == 1 {
		all = slices.Repeat(all, len(windows))
	} else if all = m.byBlock(a, key); m.err != nil {
		return heads
	}
	for block, window := range windows {
		kind := min(window, 1)
		if heads[kind] != 0 && heads[kind] != all[block] {
			m.keep(&Error{Where: fmt.Sprintf("metadata key %q", m.architecture+"."+key), Reason: fmt.Sprintf("blocks of a kind have %d heads and %d", heads[kind], all[block]), Err: ErrUnknown})
		}
		heads[kind] = all[block]
	}
	if m.err == nil && (min(heads[0], heads[1]) < 1 || max(heads[0], heads[1]) > LargestNumber) {
		m.keep(&Error{Where: fmt.Sprintf("metadata key %q", m.architecture+"."+key), Reason: fmt.Sprintf("%d heads in blocks without a window and %d in those with one", heads[0], heads[1])})
	}
	return heads
}

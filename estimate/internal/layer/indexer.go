package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Indexer holds the sizes of DeepSeek V3.2's indexer, whose heads score each earlier token; attention
// reads the TopK best ones (DeepseekV32Indexer of transformers 5.24). Its keys, Size elements for each
// token, are cached too.
type Indexer struct{ Heads, Size, TopK int }

// indexing is the indexer of attention whose queries have a rank.
type indexing struct {
	hidden, rank int
	Indexer
}

func (l LatentAttention) indexer() indexing { return indexing{l.Hidden, l.QueryRank, *l.Indexer} }

// Kind names the row.
func (indexing) Kind() string { return "Indexer" }

func (l indexing) Declare(d *tape.Declaration) {
	d.Want("Indexer.Heads", l.Heads, 1)
	d.Want("Indexer.Size", l.Size, 1)
	d.Want("Indexer.TopK", l.TopK, 1)
	d.Want("QueryRank", l.rank, 1)
	d.Layer("wq_b", Linear{In: l.rank, Out: int(min(setting.FLOPs(l.Heads, l.Size), setting.MaxField)), NoBias: true})
	d.Layer("wk", Linear{In: l.hidden, Out: l.Size, NoBias: true})
	d.Layer("k_norm", LayerNorm{Size: l.Size})
	d.Layer("weights_proj", Linear{In: l.hidden, Out: l.Heads, NoBias: true})
}

// Forward records what runs without autograd: it keeps nothing, and its parameters have no gradient. It
// returns x, beside which attention gets a mask.
func (l indexing) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	const wide = alloc.Float32
	batch, length := x.Dim(0), x.Dim(1)
	keys := Seen(t, length)
	q := t.Const(wide, batch, length, l.Heads, l.Size)
	k := t.Const(wide, batch, 1, l.Size, keys)
	scores := t.Op(tape.Op{In: []tape.Tensor{q, k}, Shape: alloc.Shape{batch, length, l.Heads, keys}, FLOPs: setting.FLOPs(batch, length, l.Heads, l.Size, keys, 2)})
	scores = t.Scale(t.Scale(scores)) // times a constant, and the ReLU
	all := t.Op(tape.Op{In: []tape.Tensor{scores}, Shape: alloc.Shape{batch, length, keys}, FLOPs: setting.FLOPs(batch, length, l.Heads, keys, 2)})
	best := t.Op(tape.Op{In: []tape.Tensor{t.Scale(all)}, Shape: alloc.Shape{batch, length, min(l.TopK, keys)}, DType: alloc.Int64})
	t.Op(tape.Op{In: []tape.Tensor{best}, Shape: alloc.Shape{batch, 1, length, keys}, DType: alloc.Bool})
	return x
}

package tape

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Want fails unless a setting is between least and setting.MaxField.
func (d *Declaration) Want(name string, v, least int) {
	if v < least || v > setting.MaxField {
		d.Failf("%s is %d: want %d or more, and at most %d", name, v, least, setting.MaxField)
	}
}

// WantHeads fails unless tensor parallelism can divide the attention heads among its devices. There
// may be fewer heads of keys and values than devices: then several devices hold the same head.
func (d *Declaration) WantHeads(heads, kv int) {
	n := d.Cfg.Sharding.Tensor
	if heads%n != 0 || kv%n != 0 && n%kv != 0 {
		d.Failf("%d heads, and %d of keys and values, do not divide among %d devices: want a Tensor of Sharding that divides both", heads, kv, n)
	}
}

// Rank fails unless x has as many dimensions as dims. The error lists them by names.
func (t *Tape) Rank(x Tensor, dims int, names string) {
	if len(x.Shape) != dims {
		t.Failf("input %v has %d dimensions: want %d, %s", x.Shape, len(x.Shape), dims, names)
	}
}

// Width fails unless dimension dim of x has the wanted length. A negative dim counts from the last
// dimension.
func (t *Tape) Width(x Tensor, dim, want int, what string) {
	i := dim
	if i < 0 {
		i += len(x.Shape)
	}
	if i < 0 || i >= len(x.Shape) {
		t.Failf("input %v has too few dimensions to hold %d %s", x.Shape, want, what)
	}
	if x.Shape[i] != want {
		t.Failf("input %v has %d %s: want %d", x.Shape, x.Shape[i], what, want)
	}
}

// Wrong takes the place of a layer that cannot be made. Its text says why.
type Wrong string

// Kind returns "layer", since no layer could be made.
func (Wrong) Kind() string { return "layer" }

func (w Wrong) Declare(d *Declaration) { d.Failf("%s", string(w)) }

func (w Wrong) Forward(t *Tape, x Tensor) Tensor {
	t.Failf("%s", string(w))
	return x
}

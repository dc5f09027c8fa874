package tape

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Want reports whether a setting is between least and setting.MaxField. If it is not, the
// declaration ends with an error.
func (d *Declaration) Want(name string, v, least int) bool {
	if v < least || v > setting.MaxField {
		d.Errorf("%s is %d: want %d or more, and at most %d", name, v, least, setting.MaxField)
		return false
	}
	return d.Err == nil
}

// Setting is a field of a layer with the least value it may have.
type Setting struct {
	Name  string
	Value int
	Least int
}

// WantAll calls Want for each setting, and stops at the first that is out of range.
func (d *Declaration) WantAll(settings ...Setting) bool {
	for _, s := range settings {
		if !d.Want(s.Name, s.Value, s.Least) {
			return false
		}
	}
	return true
}

// WantHeads reports whether tensor parallelism can divide the attention heads among its devices. If
// it cannot, the declaration ends with an error. There may be fewer heads of keys and values than
// devices: then several devices hold the same head.
func (d *Declaration) WantHeads(heads, kv int) bool {
	n := d.Cfg.Sharding.Tensor
	if heads%n != 0 || kv%n != 0 && n%kv != 0 {
		d.Errorf("%d heads, and %d of keys and values, do not divide among %d devices: want a Tensor of Sharding that divides both", heads, kv, n)
	}
	return d.Err == nil
}

// Rank returns an error unless x has as many dimensions as dims. The error lists them by names.
func (t *Tape) Rank(x Tensor, dims int, names string) error {
	if len(x.Shape) != dims {
		return t.Errorf("input %v has %d dimensions: want %d, %s", x.Shape, len(x.Shape), dims, names)
	}
	return nil
}

// Width returns an error unless dimension dim of x has the wanted length. A negative dim counts
// from the last dimension.
func (t *Tape) Width(x Tensor, dim, want int, what string) error {
	i := dim
	if i < 0 {
		i += len(x.Shape)
	}
	if i < 0 || i >= len(x.Shape) {
		return t.Errorf("input %v has too few dimensions to hold %d %s", x.Shape, want, what)
	}
	if x.Shape[i] != want {
		return t.Errorf("input %v has %d %s: want %d", x.Shape, x.Shape[i], what, want)
	}
	return nil
}

// Wrong takes the place of a layer that cannot be made. Its text says why.
type Wrong string

// Kind returns "layer", since no layer could be made.
func (Wrong) Kind() string { return "layer" }

func (w Wrong) Declare(d *Declaration) { d.Errorf("%s", string(w)) }

func (w Wrong) Forward(t *Tape, _ Tensor) (Tensor, error) {
	return Tensor{}, t.Errorf("%s", string(w))
}

package tape

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Want reports whether a setting is between least and maxField, and ends the
// declaration with an error if it is not.
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

// WantAll is want for several settings.
func (d *Declaration) WantAll(settings ...Setting) bool {
	for _, s := range settings {
		if !d.Want(s.Name, s.Value, s.Least) {
			return false
		}
	}
	return true
}

// WantHeads reports whether tensor parallelism divides the heads among its devices, and ends the
// declaration with an error if it does not. Where there are fewer heads of keys and values than devices,
// several have the same one.
func (d *Declaration) WantHeads(heads, kv int) bool {
	n := d.Cfg.Sharding.Tensor
	if heads%n != 0 || kv%n != 0 && n%kv != 0 {
		d.Errorf("%d heads, and %d of keys and values, do not divide among %d devices: want a Tensor of Sharding that divides both", heads, kv, n)
	}
	return d.Err == nil
}

// Rank reports an error unless x has a batch and so many dimensions after it.
func (t *Tape) Rank(x Tensor, dims int, names string) error {
	if len(x.Shape) != dims {
		return t.Errorf("input %v has %d dimensions: want %d, %s", x.Shape, len(x.Shape), dims, names)
	}
	return nil
}

// Width reports an error unless the dimension of x holds so many channels or
// features; dim counts from the end where it is negative.
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

// Kind is that of what would stand there.
func (Wrong) Kind() string { return "layer" }

func (w Wrong) Declare(d *Declaration) { d.Errorf("%s", string(w)) }

func (w Wrong) Forward(t *Tape, _ Tensor) (Tensor, error) {
	return Tensor{}, t.Errorf("%s", string(w))
}

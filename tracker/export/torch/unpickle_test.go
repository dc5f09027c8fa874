package torch

import (
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
)

// Opcodes that the page knows, and that are not written.
const (
	opNone = 'N'
)

// The values of a pickle as Go has them, beside nil, bool, int64, float64 and string.
type (
	sequence struct{ items []any }
	dict     struct{ items map[string]any }
)

func (d *dict) get(key string) (any, bool) {
	v, ok := d.items[key]
	return v, ok
}

func unpickle(in io.Reader) (any, error) {
	r, err := bounded.NewReader(in, 0)
	if err != nil {
		return nil, err
	}
	data, top, err := plain.ReadPickle(r)
	if err != nil {
		return nil, err
	}
	return goValue(data, top), nil
}

func goValue(data *plain.Data, v plain.Value) any {
	switch v.Kind() {
	case plain.Bool:
		b, _ := v.Bool()
		return b
	case plain.Int:
		n, _ := v.Int()
		return n
	case plain.Float:
		f, _ := v.Float()
		return f
	case plain.String:
		return data.Str(v)
	case plain.List:
		s := new(sequence)
		for _, e := range data.List(v) {
			s.items = append(s.items, goValue(data, e))
		}
		return s
	case plain.Dict:
		d := &dict{items: make(map[string]any)}
		for key, value := range data.Each(v) {
			d.items[key] = goValue(data, value)
		}
		return d
	}
	return nil
}

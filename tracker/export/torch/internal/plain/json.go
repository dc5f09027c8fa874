package plain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// ReadJSON reads a JSON text. The error says where it is torn or no JSON.
func ReadJSON(r *bounded.Reader) (*Data, Value, error) {
	d := json.NewDecoder(r)
	d.UseNumber()
	p := &pickle{Data: newData(r), r: r} // its stack is used here too
	for {
		token, err := d.Token()
		if err == nil {
			err = errors.Join(p.token(token), p.flush())
		}
		if err != nil {
			return nil, Value{}, jsonError(err, d.InputOffset())
		}
		if len(p.marks) == 0 {
			return p.Data, p.stack[0], nil
		}
	}
}

func jsonError(err error, at int64) error {
	switch {
	case errors.Is(err, bounded.ErrTooLarge):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the file is torn: it ends before the JSON does: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("at byte %d: %w", at, err)
}

// flush moves values into the list that they belong to, of which there may be
// many before its end.
func (p *pickle) flush() error {
	const many = 1000
	floor := p.floor()
	if len(p.stack)-floor < many || p.stack[floor-1].kind != List {
		return nil
	}
	list, values := p.stack[floor-1], p.stack[floor:]
	p.stack = p.stack[:floor]
	return p.extend(list, values)
}

// token does what a token says, as an opcode of a pickle would.
func (p *pickle) token(token json.Token) error {
	switch t := token.(type) {
	case json.Delim:
		return p.delimiter(t)
	case json.Number:
		v, err := parseInt([]byte(t))
		if err != nil {
			var f float64
			f, err = t.Float64()
			v = float(f)
		}
		return p.orPush(v, err)
	case string:
		v, err := p.text([]byte(t))
		return p.orPush(v, err)
	case bool:
		return p.push(boolean(t))
	}
	return p.push(Value{})
}

func (p *pickle) delimiter(t json.Delim) error {
	switch t {
	case '{':
		v, err := p.newDict()
		return errors.Join(p.orPush(v, err), p.mark())
	case '[':
		v, err := p.newList()
		return errors.Join(p.orPush(v, err), p.mark())
	case '}':
		return p.extendTop(opSetItems)
	}
	return p.extendTop(opAppends)
}

package plain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
)

// ReadJSON reads a JSON text. The error says where it is torn or no JSON.
func ReadJSON(r *bounded.Reader) (*Data, Value, error) {
	in, err := jsonstream.NewReader(r)
	if err != nil {
		return nil, Value{}, err
	}
	p := newPickle(r) // its stack is used here too
	if err := p.json(in); err != nil {
		return nil, Value{}, jsonError(err, in.Offset())
	}
	return p.Data, p.stack[0], nil
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

// json pushes the next value, as the opcodes of a pickle would.
func (p *pickle) json(in *jsonstream.Reader) error {
	first, err := in.Next()
	if err != nil {
		return err
	}
	switch first {
	case '{':
		v, err := p.newDict()
		if err := errors.Join(p.orPush(v, err), p.mark()); err != nil {
			return err
		}
		if _, err := in.Members(func(key string) error {
			k, err := p.text([]byte(key))
			if err := p.orPush(k, err); err != nil {
				return err
			}
			return p.json(in)
		}); err != nil {
			return err
		}
		return p.extendTop(opSetItems)
	case '[':
		v, err := p.newList()
		if err := errors.Join(p.orPush(v, err), p.mark()); err != nil {
			return err
		}
		if err := in.Elements(func() error { return errors.Join(p.json(in), p.flush()) }); err != nil {
			return err
		}
		return p.extendTop(opAppends)
	}
	text, err := in.Raw()
	if err != nil {
		return err
	}
	return p.word(text)
}

// flush moves values from the stack into their list before the list's end, so that the stack stays
// small.
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

// word pushes a value that holds no others.
func (p *pickle) word(text []byte) error {
	switch string(text) {
	case "null":
		return p.push(Value{})
	case "true", "false":
		return p.push(boolean(text[0] == 't'))
	}
	if len(text) > 0 && text[0] == '"' {
		s, err := jsonstream.Text(text)
		if err != nil {
			return err
		}
		v, err := p.text([]byte(s))
		return p.orPush(v, err)
	}
	if n, ok := jsonstream.IntOf(text); ok {
		return p.push(number(n))
	}
	var f float64
	if err := json.Unmarshal(text, &f); err != nil {
		if len(text) > 64 { // which the error would quote whole
			err = fmt.Errorf("%.20q is no number", text)
		}
		return err
	}
	v, err := parseInt(text)
	if err != nil {
		v = float(f)
	}
	return p.push(v)
}

package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// decodeJSON decodes a text that is one JSON value into v, whose names it finds
// whatever their case, as encoding/json does. See readJSONValue for what
// it refuses.
func decodeJSON(r io.Reader, v any) error {
	value, err := readJSONValue(r)
	if err != nil {
		return err
	}
	return unmarshal(value, v)
}

// unmarshal decodes a valid JSON value; the error of a wrong type says where it is.
func unmarshal(value []byte, v any) error {
	err := json.Unmarshal(value, v)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		where := ""
		if wrong.Field != "" { // Go 1.27 does not tell it of every error
			where = fmt.Sprintf(", within %q", "/"+strings.ReplaceAll(wrong.Field, ".", "/"))
		}
		return fmt.Errorf("a JSON %s where Go wants %v%s", wrong.Value, wrong.Type, where)
	}
	return err
}

// readJSONValue reads a text that is one JSON value. Unlike encoding/json, which
// would take the last value of a name and put U+FFFD for a wrong byte, it refuses
// names that an object has twice and text that is not UTF-8. It reads no further
// than the text is JSON.
func readJSONValue(r io.Reader) ([]byte, error) {
	dec := json.NewDecoder(r)
	var value json.RawMessage
	if err := dec.Decode(&value); err != nil {
		return nil, err
	}
	end := dec.InputOffset()
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("something follows the JSON at byte %d", end)
	}
	if !utf8.Valid(value) {
		return nil, errors.New("invalid UTF-8")
	}
	return value, checkNames(value)
}

// checkNames checks that no object in a valid JSON value has a name twice.
func checkNames(value []byte) error {
	var names [][]byte // of the objects around, the innermost one's last
	var starts []int   // where in names those of each object or array around start
	var last []byte
	for c := (jsonCursor{value}); len(c.rest) > 0; {
		token := c.token()
		switch token[0] {
		case '{', '[':
			starts = append(starts, len(names))
		case ':':
			names = append(names, unquote(last))
		case '}', ']':
			start := starts[len(starts)-1]
			if name, ok := twice(names[start:]); ok {
				return fmt.Errorf("duplicate object member name %q", shorten(string(name)))
			}
			names, starts = names[:start], starts[:len(starts)-1]
		}
		last = token
	}
	return nil
}

// twice sorts names and returns one that occurs twice.
func twice(names [][]byte) (name []byte, ok bool) {
	slices.SortFunc(names, bytes.Compare)
	for i := 1; i < len(names); i++ {
		if bytes.Equal(names[i-1], names[i]) {
			return names[i], true
		}
	}
	return nil, false
}

// unquote returns what a valid JSON string says.
func unquote(text []byte) []byte {
	if bytes.IndexByte(text, '\\') < 0 {
		return text[1 : len(text)-1]
	}
	var s string
	json.Unmarshal(text, &s) // it is valid
	return []byte(s)
}

// jsonCursor goes through a valid JSON value with nothing around it.
type jsonCursor struct{ rest []byte }

// token returns the next string, number, word, bracket, or colon. Commas are left out.
func (c *jsonCursor) token() []byte {
	c.space()
	end := 1
	switch c.rest[0] {
	case '"':
		for ; c.rest[end] != '"'; end++ {
			if c.rest[end] == '\\' {
				end++
			}
		}
		end++
	case '{', '}', '[', ']', ':':
	default:
		for end < len(c.rest) && !isSpace(c.rest[end]) && c.rest[end] != ']' && c.rest[end] != '}' {
			end++
		}
	}
	token := c.rest[:end]
	c.rest = c.rest[end:]
	return token
}

// more tells whether the object or array has another member or element.
func (c *jsonCursor) more() bool {
	c.space()
	return c.rest[0] != '}' && c.rest[0] != ']'
}

// member returns the next name of an object, quoted. Its value comes next.
func (c *jsonCursor) member() []byte {
	name := c.token()
	c.token() // the colon
	return name
}

// value returns the next value, an object or an array as a whole.
func (c *jsonCursor) value() []byte {
	c.space()
	start := c.rest
	for depth := 0; ; {
		switch c.token()[0] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if depth == 0 {
			return start[:len(start)-len(c.rest)]
		}
	}
}

// space skips what separates values.
func (c *jsonCursor) space() {
	for len(c.rest) > 0 && isSpace(c.rest[0]) {
		c.rest = c.rest[1:]
	}
}

func isSpace(b byte) bool { return b == ' ' || b == ',' || b == '\n' || b == '\r' || b == '\t' }

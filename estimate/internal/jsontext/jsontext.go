// Package jsontext reads one JSON value from a file that is not trusted. It refuses a name that
// stands twice in an object, and text that is not UTF-8. It does not know what the values mean.
package jsontext

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Decode decodes a text that is one JSON value into v. Names match whatever their case, as in
// encoding/json. See Read for what it refuses.
func Decode(r io.Reader, v any) error {
	value, err := Read(r)
	if err != nil {
		return err
	}
	return Unmarshal(value, v)
}

// Unmarshal decodes a valid JSON value. The error for a wrong type says where in the value it is.
func Unmarshal(value []byte, v any) error {
	err := json.Unmarshal(value, v)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		where := ""
		if wrong.Field != "" { // Go 1.27 does not name it in every error
			where = fmt.Sprintf(", within %q", "/"+strings.ReplaceAll(wrong.Field, ".", "/"))
		}
		return fmt.Errorf("a JSON %s where Go wants %v%s", wrong.Value, wrong.Type, where)
	}
	return err
}

// Unzip decodes a JSON value that gzip compressed, as those are that the program carries.
func Unzip(zipped []byte, v any) error {
	zip, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		return err
	}
	return json.NewDecoder(zip).Decode(v)
}

// Read reads a text that is one JSON value. Unlike encoding/json, which takes the last of two
// values with one name and replaces wrong bytes with U+FFFD, it refuses objects with a name that
// stands twice, and text that is not UTF-8. It stops reading where the text is no longer JSON.
func Read(r io.Reader) ([]byte, error) {
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

// FromPython returns the text with null in place of Infinity, -Infinity and NaN, which Python's
// json writes but JSON does not have. Strings stay as they are.
func FromPython(text []byte) []byte {
	var made []byte
	from := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case 'I', 'N', '-':
			for _, word := range []string{"-Infinity", "Infinity", "NaN"} {
				if bytes.HasPrefix(text[i:], []byte(word)) {
					made = append(append(made, text[from:i]...), "null"...)
					from = i + len(word)
					i = from - 1
					break
				}
			}
		}
	}
	if from == 0 {
		return text
	}
	return append(made, text[from:]...)
}

// checkNames checks that no object in a valid JSON value has a name twice.
func checkNames(value []byte) error {
	var names [][]byte // names of the objects around, the innermost one's last
	var starts []int   // for each object or array around, where its names start in names
	var last []byte
	for c := (Cursor{value}); len(c.rest) > 0; {
		token := c.Token()
		switch token[0] {
		case '{', '[':
			starts = append(starts, len(names))
		case ':':
			names = append(names, Unquote(last))
		case '}', ']':
			start := starts[len(starts)-1]
			if name, ok := twice(names[start:]); ok {
				return fmt.Errorf("duplicate object member name %q", Shorten(string(name)))
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

// Unquote returns the text of a valid JSON string.
func Unquote(text []byte) []byte {
	if bytes.IndexByte(text, '\\') < 0 {
		return text[1 : len(text)-1]
	}
	var s string
	_ = json.Unmarshal(text, &s) // it is valid
	return []byte(s)
}

// Cursor walks through a valid JSON value that has no space around it.
type Cursor struct{ rest []byte }

// NewCursor returns a cursor at the beginning of a value.
func NewCursor(value []byte) Cursor { return Cursor{value} }

// Token returns the next string, number, word, bracket or colon. It skips commas.
func (c *Cursor) Token() []byte {
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

// More reports whether the object or array has another member or element.
func (c *Cursor) More() bool {
	c.space()
	return c.rest[0] != '}' && c.rest[0] != ']'
}

// Member returns the next name of an object, with its quotes. Its value comes next.
func (c *Cursor) Member() []byte {
	name := c.Token()
	c.Token() // the colon
	return name
}

// Value returns the next value. An object or array comes as a whole.
func (c *Cursor) Value() []byte {
	c.space()
	start := c.rest
	for depth := 0; ; {
		switch c.Token()[0] {
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
func (c *Cursor) space() {
	for len(c.rest) > 0 && isSpace(c.rest[0]) {
		c.rest = c.rest[1:]
	}
}

func isSpace(b byte) bool { return b == ' ' || b == ',' || b == '\n' || b == '\r' || b == '\t' }

// Shorten cuts a name from a file to a length that fits into an error.
func Shorten(name string) string {
	const most = 200
	if len(name) <= most {
		return name
	}
	return name[:most] + "..."
}

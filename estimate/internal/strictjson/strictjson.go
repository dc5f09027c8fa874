// Package strictjson reads one JSON value from a file that is not trusted. It refuses a name that
// stands twice in an object, and text that is not UTF-8. It does not know what the values mean.
package strictjson

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
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
		return fmt.Errorf("a JSON %s where %s belongs%s", wrong.Value, wanted(wrong.Type), where)
	}
	return err
}

// wanted returns what JSON calls the values of a type.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// Unzip decodes a JSON value that gzip compressed, as those are that the program carries.
func Unzip(zipped []byte, v any) error {
	text, err := Unzipped(zipped)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// Unzipped returns a text that gzip compressed.
func Unzipped(zipped []byte) ([]byte, error) {
	zip, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(zip)
}

// Read reads a text that is one JSON value. Unlike encoding/json, which takes the last of two
// values with one name and replaces wrong bytes with U+FFFD, it refuses objects with a name that
// stands twice, and text that is not UTF-8. It stops reading where the text is no longer JSON.
func Read(r io.Reader) ([]byte, error) {
	dec := jsontext.NewDecoder(r)
	value, err := dec.ReadValue()
	if err != nil {
		return nil, readError(err)
	}
	value = bytes.Clone(value) // the next read overwrites it
	end := dec.InputOffset()
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("something follows the JSON at byte %d", end)
	}
	return value, nil
}

// readError says what is wrong with a text, and in which member.
func readError(err error) error {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Errorf("%w %q", syntax.Err, Shorten(syntax.JSONPointer.LastToken()))
	case syntax.JSONPointer == "":
		return syntax.Err
	}
	return fmt.Errorf("%w within %q", syntax.Err, Shorten(string(syntax.JSONPointer)))
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

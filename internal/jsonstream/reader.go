// Package jsonstream reads and writes JSON objects whose members are long arrays, one element at a
// time: a [Reader] needs memory for one element, a [Writer] for its buffer. [Flat] reads elements
// of a plain form faster than encoding/json. The package does not know what the elements mean.
package jsonstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// Reader reads a JSON text piece by piece, so that a file of a million buffers is never in memory
// as a whole. The memory for what is read is limited by the file's size: see bounded.Reader.
type Reader struct {
	text *text
	dec  *jsontext.Decoder
}

// text is what the decoder reads. It bounds the decoder's buffer, which grows with the longest value.
type text struct {
	*bounded.Reader
	dec   *jsontext.Decoder
	begin int64 // bytes that were read before the JSON text
	err   error // other than io.EOF
}

// Read implements io.Reader.
func (t *text) Read(p []byte) (int, error) {
	if t.Offset()-t.begin-t.dec.InputOffset() > maxElement {
		t.err = fmt.Errorf("%w: an element of the JSON has more than %d MiB", bounded.ErrTooLarge, maxElement>>20)
		return 0, t.err
	}
	n, err := t.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		t.err = err
	}
	return n, err
}

// maxElement bounds a string, or an element of a list that is read as a whole.
const maxElement = 1 << 24

// NewReader returns a reader of a text, packed by gzip or not. As in encoding/json, the last of two members with one name
// counts.
func NewReader(r io.Reader) (*Reader, error) {
	b, err := bounded.NewReader(r, 0)
	if err != nil {
		return nil, err
	}
	in := &text{Reader: b, begin: b.Offset()}
	in.dec = jsontext.NewDecoder(in, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return &Reader{in, in.dec}, nil
}

// Offset returns how many bytes of the text were used.
func (s *Reader) Offset() int64 { return s.text.begin + s.dec.InputOffset() }

// Use counts bytes that the values of the text take in memory: see bounded.Reader.
func (s *Reader) Use(bytes int64) error { return s.text.Use(bytes) }

// failed returns the error for a text that the decoder refused, which says in which member. A text that ends too early is
// io.ErrUnexpectedEOF.
func (s *Reader) failed(err error) error {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case err == nil:
		return nil
	case s.text.err != nil:
		return s.text.err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF
	case !ok:
		return err
	case syntax.JSONPointer == "":
		return syntax.Err
	}
	return fmt.Errorf("%w within %.100q", syntax.Err, syntax.JSONPointer)
}

// Next returns the first byte of the next value, without reading it, which shows its kind. Any number is a 0.
func (s *Reader) Next() (byte, error) {
	kind := s.dec.PeekKind()
	if kind == jsontext.KindInvalid {
		_, err := s.dec.ReadToken()
		return 0, s.failed(err)
	}
	return byte(kind), nil
}

// Raw returns the text of a value, without spaces around it. It is valid until the next read.
func (s *Reader) Raw() ([]byte, error) {
	value, err := s.dec.ReadValue()
	return value, s.failed(err)
}

// Members reads an object: it calls read with each key, to read its value. It
// reports whether there was an object, and no null.
func (s *Reader) Members(read func(key string) error) (bool, error) {
	null, err := s.begin(jsontext.KindBeginObject)
	if null || err != nil {
		return false, err
	}
	for s.dec.PeekKind() != jsontext.KindEndObject {
		key, err := s.dec.ReadToken()
		if err != nil {
			return true, s.failed(err)
		}
		if err := read(key.String()); err != nil {
			return true, err
		}
	}
	_, err = s.dec.ReadToken()
	return true, s.failed(err)
}

// Elements reads an array: it calls read before each element, to read it. null is
// an array of none.
func (s *Reader) Elements(read func() error) error {
	null, err := s.begin(jsontext.KindBeginArray)
	if null || err != nil {
		return err
	}
	for s.dec.PeekKind() != jsontext.KindEndArray {
		if err := read(); err != nil {
			return err
		}
	}
	_, err = s.dec.ReadToken()
	return s.failed(err)
}

// begin reads the beginning of an object or an array, or a null in its place.
func (s *Reader) begin(want jsontext.Kind) (null bool, err error) {
	token, err := s.dec.ReadToken()
	switch {
	case err != nil:
		return false, s.failed(err)
	case token.Kind() == jsontext.KindNull:
		return true, nil
	case token.Kind() != want:
		return false, fmt.Errorf("%s is %s, want %s", s.where(), kindNames[token.Kind()], kindNames[want])
	}
	return false, nil
}

// where names the value that was read last.
func (s *Reader) where() string {
	if at := s.dec.StackPointer(); at != "" {
		return fmt.Sprintf("%.100q", at)
	}
	return "the JSON"
}

var kindNames = map[jsontext.Kind]string{
	jsontext.KindNull: "null", jsontext.KindFalse: "a boolean", jsontext.KindTrue: "a boolean", jsontext.KindString: "a string",
	jsontext.KindNumber: "a number", jsontext.KindBeginObject: "an object", jsontext.KindBeginArray: "an array",
}

// Text returns what a JSON string says. What is not UTF-8 in it becomes U+FFFD, as in encoding/json.
func Text(text []byte) (string, error) {
	s, err := jsontext.AppendUnquote(nil, text)
	if v := jsontext.Value(text); err != nil && v.Kind() == jsontext.KindString && v.IsValid(jsontext.AllowInvalidUTF8(true)) {
		err = nil // AppendUnquote has replaced what it reports
	}
	return string(s), err
}

// ReadTable reads an array's elements into a slice. size is the memory for one element, in bytes.
func ReadTable[T any](s *Reader, into *[]T, size int64, parse func([]byte, *T) error) error {
	return s.Elements(func() error {
		text, err := s.Raw()
		if err == nil {
			err = s.Use(size)
		}
		if err != nil {
			return err
		}
		var e T
		if err := parse(text, &e); err != nil {
			return err
		}
		*into = append(*into, e)
		return nil
	})
}

// Unmarshal is a parse function, for ReadTable, for elements that json.Unmarshal reads.
func Unmarshal[T any](text []byte, e *T) error { return json.Unmarshal(Current(text), e) }

// Rest collects the members of an object that are small, to unmarshal them together.
type Rest struct{ text []byte }

// Add reads the value of a member.
func (r *Rest) Add(s *Reader, key string) error {
	value, err := s.Raw()
	if err != nil {
		return err
	}
	separator := byte(',')
	if r.text == nil {
		separator = '{'
	}
	r.text, err = jsontext.AppendQuote(append(r.text, separator), key)
	r.text = append(append(r.text, ':'), value...)
	return err
}

// Unmarshal unmarshals the members that were read.
func (r *Rest) Unmarshal(into any) error {
	if r.text == nil {
		return nil
	}
	return json.Unmarshal(Current(append(r.text, '}')), into)
}

// Package jsonstream reads and writes JSON objects whose members are long arrays, one element at a
// time: a [Reader] needs memory for one element, a [Writer] for its buffer. [Flat] reads elements
// of a plain form faster than encoding/json. The package does not know what the elements mean.
package jsonstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// Reader reads a JSON text piece by piece, so that a file of a million buffers is never in memory
// as a whole. The memory for what is read is limited by the file's size: see bounded.Reader.
type Reader struct {
	r        *bounded.Reader
	buf      []byte
	pos, end int // what was read of the text and not used is buf[pos:end]
}

func NewReader(r io.Reader) (*Reader, error) {
	b, err := bounded.NewReader(r, 0)
	if err != nil {
		return nil, err
	}
	return &Reader{r: b, buf: make([]byte, 1<<16)}, nil
}

// maxElement bounds a string, or an element of a list that is read as a whole.
const maxElement = 1 << 24

// Offset returns how many bytes were used.
func (s *Reader) Offset() int64 { return s.r.Offset() - int64(s.end-s.pos) }

// Use counts bytes that the values of the text take in memory: see bounded.Reader.
func (s *Reader) Use(bytes int64) error { return s.r.Use(bytes) }

// fill reads more text. It moves buf[keep:end], which is still needed, to the front.
func (s *Reader) fill(keep int) error {
	if keep > 0 {
		copy(s.buf, s.buf[keep:s.end])
		s.pos, s.end = s.pos-keep, s.end-keep
	}
	if s.end == len(s.buf) {
		if len(s.buf) >= maxElement {
			return fmt.Errorf("%w: an element of the JSON has more than %d MiB", bounded.ErrTooLarge, maxElement>>20)
		}
		s.buf = append(s.buf, make([]byte, len(s.buf))...)
	}
	n, err := s.r.Read(s.buf[s.end:])
	s.end += n
	switch {
	case n > 0:
		return nil
	case errors.Is(err, io.EOF), err == nil:
		return io.ErrUnexpectedEOF
	}
	return err
}

// Next returns the next byte that is not a space, without reading it. It shows which kind of value
// begins there.
func (s *Reader) Next() (byte, error) {
	for {
		for ; s.pos < s.end; s.pos++ {
			switch c := s.buf[s.pos]; c {
			case ' ', '\t', '\r', '\n':
			default:
				return c, nil
			}
		}
		if err := s.fill(s.pos); err != nil {
			return 0, err
		}
	}
}

// take reads the next byte, which must be want.
func (s *Reader) take(want byte) error {
	c, err := s.Next()
	if err != nil {
		return err
	}
	if c != want {
		return fmt.Errorf("invalid character %q, want %q", c, want)
	}
	s.pos++
	return nil
}

// Raw returns the text of a value. It is valid until the next read. Only brackets and quotes were looked at:
// who parses it finds other errors.
func (s *Reader) Raw() ([]byte, error) {
	if _, err := s.Next(); err != nil {
		return nil, err
	}
	var depth int
	var quoted, escaped bool
	for i := s.pos; ; i++ {
		if i == s.end {
			at := i - s.pos
			if err := s.fill(s.pos); err != nil {
				return nil, err
			}
			i = s.pos + at
		}
		c := s.buf[i]
		switch {
		case escaped:
			escaped = false
		case quoted:
			escaped = c == '\\'
			quoted = c != '"'
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			depth++
			continue
		case c == '}' || c == ']' || c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r':
			if depth == 0 {
				return s.cut(i), nil // a number or a word ends before it
			}
			if c != '}' && c != ']' {
				continue
			}
			depth--
		default:
			continue
		}
		if depth == 0 && !quoted && !escaped {
			return s.cut(i + 1), nil
		}
	}
}

func (s *Reader) cut(end int) []byte {
	text := s.buf[s.pos:end]
	s.pos = end
	return text
}

// Members reads an object: it calls read with each key, to read its value. It
// reports whether there was an object, and no null.
func (s *Reader) Members(read func(key string) error) (bool, error) {
	if null, err := s.null(); null || err != nil {
		return false, err
	}
	return true, s.list('{', '}', func() error {
		text, err := s.Raw()
		if err != nil {
			return err
		}
		key, err := Text(text)
		if err != nil {
			return err
		}
		if err := s.take(':'); err != nil {
			return err
		}
		return read(key)
	})
}

// Text returns what a JSON string says.
func Text(text []byte) (string, error) {
	if n := len(text) - 1; n > 0 && text[0] == '"' && text[n] == '"' && unescaped(text[1:n]) && bytes.IndexByte(text[1:n], '"') < 0 {
		return string(text[1:n]), nil
	}
	var s string
	err := json.Unmarshal(text, &s)
	return s, err
}

// Elements reads an array: it calls read before each element, to read it. null is
// an array of none.
func (s *Reader) Elements(read func() error) error {
	if null, err := s.null(); null || err != nil {
		return err
	}
	return s.list('[', ']', read)
}

func (s *Reader) list(begin, end byte, read func() error) error {
	if err := s.take(begin); err != nil {
		return err
	}
	for first := true; ; first = false {
		c, err := s.Next()
		if err != nil {
			return err
		}
		if c == end && first {
			s.pos++
			return nil
		}
		if err := read(); err != nil {
			return err
		}
		if c, err = s.Next(); err != nil {
			return err
		}
		s.pos++
		switch c {
		case end:
			return nil
		case ',':
		default:
			return fmt.Errorf("invalid character %q, want a comma or %q", c, end)
		}
	}
}

// null reads a null if that is what comes next, and reports whether it did.
func (s *Reader) null() (bool, error) {
	c, err := s.Next()
	if err != nil || c != 'n' {
		return false, err
	}
	text, err := s.Raw()
	if err == nil && string(text) != "null" {
		err = fmt.Errorf("invalid value %.20q", text)
	}
	return true, err
}

// ReadTable reads an array's elements into a slice. size is the memory for one element, in bytes.
func ReadTable[T any](s *Reader, into *[]T, size int64, parse func([]byte, *T) error) error {
	return s.Elements(func() error {
		text, err := s.Raw()
		if err == nil {
			err = s.r.Use(size)
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

func (r *Rest) Add(s *Reader, key string) error {
	value, err := s.Raw()
	if err != nil {
		return err
	}
	name, err := json.Marshal(key)
	if err != nil {
		return err
	}
	separator := byte(',')
	if r.text == nil {
		separator = '{'
	}
	r.text = append(append(append(append(r.text, separator), name...), ':'), value...)
	return nil
}

func (r *Rest) Unmarshal(into any) error {
	if r.text == nil {
		return nil
	}
	return json.Unmarshal(Current(append(r.text, '}')), into)
}

package jsonstream

import (
	"bytes"
)

// Flat calls see with each key and value of an object. The values may be numbers, words, strings
// without escapes (given without quotes; text is true), and objects and lists of these. Flat
// reports false for any other object, or if see does: then json.Unmarshal reads the object, or says
// what is wrong with it.
func Flat(text []byte, see func(key, value []byte, text bool) bool) bool {
	inside, ok := between(text, '{', '}')
	for len(inside) > 0 {
		var key, value []byte
		var isText bool
		if key, isText, inside, ok = flatValue(inside); !ok || !isText || len(inside) < 2 || inside[0] != ':' {
			return false
		}
		if value, isText, inside, ok = flatValue(inside[1:]); !ok || !see(key, value, isText) {
			return false
		}
		if inside, ok = nextFlat(inside); !ok {
			return false
		}
	}
	return ok
}

// UnmarshalFlat reads an object with see, as [Flat] does, or else with [Unmarshal].
func UnmarshalFlat[T any](text []byte, into *T, see func(key, value []byte, text bool) bool) error {
	if Flat(text, see) {
		return nil
	}
	*into = *new(T)
	return Unmarshal(text, into)
}

// FlatList is Flat for the values of a list.
func FlatList(text []byte, see func(value []byte, text bool) bool) bool {
	inside, ok := between(text, '[', ']')
	for len(inside) > 0 {
		var value []byte
		var isText bool
		if value, isText, inside, ok = flatValue(inside); !ok || !see(value, isText) {
			return false
		}
		if inside, ok = nextFlat(inside); !ok {
			return false
		}
	}
	return ok
}

// between takes the brackets off.
func between(text []byte, begin, end byte) ([]byte, bool) {
	if len(text) < 2 || text[0] != begin || text[len(text)-1] != end {
		return nil, false
	}
	return text[1 : len(text)-1], true
}

// nextFlat skips the comma before the next value, if there is one.
func nextFlat(text []byte) ([]byte, bool) {
	if len(text) == 0 {
		return text, true
	}
	return text[1:], text[0] == ',' && len(text) > 1
}

// flatValue cuts off the first value. It does not check a value that is no string: who parses it finds what
// is wrong.
func flatValue(text []byte) (value []byte, isText bool, rest []byte, ok bool) {
	switch text[0] {
	case '"':
		n := bytes.IndexByte(text[1:], '"')
		if n < 0 || !unescaped(text[1:n+1]) {
			return nil, false, nil, false
		}
		return text[1 : n+1], true, text[n+2:], true
	case '{', '[':
		n := closing(text)
		return text[:n], false, text[n:], n > 0
	}
	n := bytes.IndexAny(text, ",:")
	if n < 0 {
		n = len(text)
	}
	return text[:n], false, text[n:], true
}

// closing returns where the brackets that the text begins with end; 0 if they do not, or
// a string in them has an escape.
func closing(text []byte) int {
	depth, quoted := 0, false
	for i, c := range text {
		switch {
		case c == '\\':
			return 0
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// unescaped reports whether a string is of printable ASCII without escapes.
func unescaped(text []byte) bool {
	for _, c := range text {
		if c < ' ' || c > '~' || c == '\\' {
			return false
		}
	}
	return true
}

// UintOf parses a number of at most 18 digits.
func UintOf(text []byte) (n uint64, ok bool) {
	if len(text) == 0 || len(text) > 18 || text[0] == '0' && len(text) > 1 {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + uint64(c-'0')
	}
	return n, true
}

// Number sets a number from its text. It reports false for a text that UintOf and IntOf do not parse, or whose number is
// none of the type.
func Number[N ~int | ~int64 | ~uint16 | ~uint64](text []byte, to *N) bool {
	if n, ok := UintOf(text); ok {
		*to = N(n)
		return uint64(*to) == n
	}
	n, ok := IntOf(text)
	*to = N(n)
	return ok && *to < 0 && int64(*to) == n
}

// IntOf is UintOf for numbers that may be negative.
func IntOf(text []byte) (n int64, ok bool) {
	negative := len(text) > 0 && text[0] == '-'
	if negative {
		text = text[1:]
	}
	u, ok := UintOf(text)
	if negative {
		return -int64(u), ok && u != 0
	}
	return int64(u), ok
}

// Texts are strings that a file has many times.
type Texts map[string]string

func (t Texts) Of(b []byte) string {
	s, ok := t[string(b)]
	if !ok {
		s = string(b)
		t[s] = s
	}
	return s
}

package jsonstream

import (
	"bytes"
)

// Flat calls see with each key and value of an object, a text that [Reader.Raw] returned. The values may be numbers, words,
// strings without escapes (given without quotes; text is true), and objects and lists of these, without spaces between
// them. Flat reports false for any other value, or if see does: then json.Unmarshal reads it, or says what is wrong with it.
func Flat(object []byte, see func(key, value []byte, text bool) bool) bool {
	if object[0] != '{' {
		return false
	}
	rest := object[1:]
	for rest[0] != '}' {
		key, isText, after, ok := flatValue(rest)
		if !ok || !isText || after[0] != ':' {
			return false
		}
		value, isText, after, ok := flatValue(after[1:])
		if !ok || !see(key, value, isText) {
			return false
		}
		if rest, ok = nextFlat(after, '}'); !ok {
			return false
		}
	}
	return true
}

// UnmarshalFlat reads an object with see, as [Flat] does, or else with [Unmarshal].
func UnmarshalFlat[T any](object []byte, into *T, see func(key, value []byte, text bool) bool) error {
	if Flat(object, see) {
		return nil
	}
	*into = *new(T)
	return Unmarshal(object, into)
}

// FlatList is Flat for the values of a list.
func FlatList(list []byte, see func(value []byte, text bool) bool) bool {
	if list[0] != '[' {
		return false
	}
	rest := list[1:]
	for rest[0] != ']' {
		value, isText, after, ok := flatValue(rest)
		if !ok || !see(value, isText) {
			return false
		}
		if rest, ok = nextFlat(after, ']'); !ok {
			return false
		}
	}
	return true
}

// nextFlat skips the comma before the next value. What follows a value is the comma, the end or a space.
func nextFlat(rest []byte, end byte) ([]byte, bool) {
	switch rest[0] {
	case ',':
		return rest[1:], true
	case end:
		return rest, true
	}
	return nil, false
}

// flatValue cuts off the first value. The text is valid JSON, in which brackets follow the value.
func flatValue(text []byte) (value []byte, isText bool, rest []byte, ok bool) {
	switch text[0] {
	case '"':
		n := bytes.IndexByte(text[1:], '"')
		return text[1 : n+1], true, text[n+2:], unescaped(text[1 : n+1])
	case '{', '[':
		n := closing(text)
		return text[:n], false, text[n:], n > 0
	case ' ', '\t', '\r', '\n':
		return nil, false, nil, false
	}
	n := 1
	for text[n] != ',' && text[n] != '}' && text[n] != ']' && text[n] > ' ' {
		n++
	}
	return text[:n], false, text[n:], true
}

// closing returns where the brackets that the text begins with end; 0 if a string in them has an escape.
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

// Number sets a number from its text. It reports false for a text that UintOf and IntOf do not parse, or whose number
// the type cannot hold.
func Number[N ~int | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64](text []byte, to *N) bool {
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

// Of returns the text as a string, the same one for equal texts.
func (t Texts) Of(b []byte) string {
	s, ok := t[string(b)]
	if !ok {
		s = string(b)
		t[s] = s
	}
	return s
}

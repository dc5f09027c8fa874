package plain

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"
)

func parseInt(text []byte) (Value, error) {
	v, err := strconv.ParseInt(string(text), 10, 64)
	if err == nil {
		return number(v), nil
	}
	if u, err := strconv.ParseUint(string(text), 10, 64); err == nil { // an address in the upper half
		return number(int64(u)), nil
	}
	return Value{}, fmt.Errorf("%.20q is no integer of 64 bits", text)
}

// unescape undoes Python's raw-unicode-escape, where only \uXXXX and \UXXXXXXXX
// are escapes and bytes are Latin-1, or the escapes of a string literal.
func unescape(text []byte, literal bool) ([]byte, error) {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '\\' || i+1 == len(text) {
			out = appendByte(out, c, literal)
			continue
		}
		i++
		digits := 0
		switch e := text[i]; {
		case e == 'u':
			digits = 4
		case e == 'U':
			digits = 8
		case literal && e == 'x':
			digits = 2
		case literal && bytes.IndexByte([]byte(`abtnvfr`), e) >= 0:
			out = append(out, "\a\b\t\n\v\f\r"[bytes.IndexByte([]byte(`abtnvfr`), e)])
			continue
		case literal:
			out = append(out, e)
			continue
		default:
			out = append(out, '\\', e)
			continue
		}
		if i+digits >= len(text) {
			return nil, fmt.Errorf("the string ends within an escape")
		}
		v, err := strconv.ParseUint(string(text[i+1:i+1+digits]), 16, 32)
		if err != nil {
			return nil, err
		}
		i += digits
		if literal && digits == 2 {
			out = append(out, byte(v))
		} else {
			out = utf8.AppendRune(out, rune(v))
		}
	}
	return out, nil
}

// appendByte appends a byte of a literal, or a character of Latin-1.
func appendByte(out []byte, c byte, literal bool) []byte {
	if literal {
		return append(out, c)
	}
	return utf8.AppendRune(out, rune(c))
}

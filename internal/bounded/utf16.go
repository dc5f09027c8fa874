package bounded

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

// utf16Of returns the byte order of a text in UTF-16, as PowerShell writes what is redirected into a file; nil of another one.
// Such a text begins with a byte order mark, and here with a character of ASCII.
func utf16Of(head []byte) binary.ByteOrder {
	switch {
	case len(head) < 4:
	case head[0] == 0xff && head[1] == 0xfe && head[2] != 0 && head[3] == 0:
		return binary.LittleEndian
	case head[0] == 0xfe && head[1] == 0xff && head[2] == 0 && head[3] != 0:
		return binary.BigEndian
	}
	return nil
}

// utf16Reader reads a text in UTF-16 as UTF-8, without its byte order mark.
type utf16Reader struct {
	r     *bufio.Reader
	order binary.ByteOrder
	text  []byte // decoded and not read yet
	err   error
}

func newUTF16Reader(r *bufio.Reader, order binary.ByteOrder) *utf16Reader {
	_, err := r.Discard(2)
	return &utf16Reader{r: r, order: order, err: err}
}

// Read reads text. A half character at the end is left out.
func (u *utf16Reader) Read(p []byte) (int, error) {
	const piece = 4 << 10
	for len(u.text) == 0 && u.err == nil {
		u.text = u.text[:0:cap(u.text)]
		for len(u.text) < piece && u.err == nil {
			u.decode()
		}
	}
	n := copy(p, u.text)
	u.text = u.text[n:]
	if n == 0 && len(p) > 0 {
		return 0, u.err
	}
	return n, nil
}

// decode reads a character.
func (u *utf16Reader) decode() {
	unit, err := u.unit()
	if err != nil {
		u.err = err
		return
	}
	if utf16.IsSurrogate(unit) {
		next, err := u.unit()
		u.err = err
		unit = utf16.DecodeRune(unit, next)
	}
	u.text = utf8.AppendRune(u.text, unit)
}

func (u *utf16Reader) unit() (rune, error) {
	var b [2]byte
	if _, err := io.ReadFull(u.r, b[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return 0, err
	}
	return rune(u.order.Uint16(b[:])), nil
}

package plain

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// input is the text of a pickle.
type input struct {
	r    *bounded.Reader
	line []byte
	tail [2 * longest]byte // see window
	end  error             // why less than longest is left
}

// longest is the most bytes that an opcode of common takes, if it is no string.
const longest = 10

// maxWindow bounds a window: only what was read before it allows memory, see bounded.PerByte.
const maxWindow = 16 << 10

// window returns the next bytes of the file, as far as they are in memory. Near the file's end, where less than longest is
// left, zeros follow them.
func (in *input) window() (text []byte, size int) {
	if text, in.end = in.r.Buffered(longest); len(text) >= longest {
		size = min(len(text), maxWindow)
		return text[:size], size
	}
	size = copy(in.tail[:], text)
	clear(in.tail[size:])
	return in.tail[:], size
}

func (in *input) byte() (byte, error) {
	c, err := in.r.ReadByte()
	return c, torn(err)
}

// torn says what the end of the file means here.
func torn(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file is torn: it ends before the pickle does: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// number reads a little-endian number.
func (in *input) number(bytes int) (uint64, error) {
	b, err := in.r.Peek(bytes)
	if err != nil {
		return 0, torn(err)
	}
	var v uint64
	for i := bytes - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v, in.r.Discard(bytes)
}

// maxString bounds a string: the longest of a snapshot are names of functions.
const maxString = 1 << 24

// readLine reads up to the end of the line. It is valid until the next.
func (in *input) readLine() ([]byte, error) {
	in.line = in.line[:0]
	for {
		c, err := in.byte()
		switch {
		case err != nil:
			return nil, err
		case c == '\n':
			return bytes.TrimSuffix(in.line, []byte("\r")), nil
		case len(in.line) >= maxString:
			return nil, fmt.Errorf("a line of more than %d bytes", maxString)
		}
		in.line = append(in.line, c)
	}
}

// signed returns the number that the lower bytes have in two's complement.
func signed(v uint64, bytes int) int64 {
	shift := 64 - 8*bytes
	return int64(v<<shift) >> shift
}

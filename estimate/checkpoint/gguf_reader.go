package checkpoint

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	maxGGUFHeader = 100_000_000 // bytes, the same limit as for safetensors; a vocabulary takes some 10 MB
	maxGGUFName   = 1<<16 - 1   // bytes of a key or a name: the format's limit for keys
	maxGGUFText   = 1 << 16     // bytes of a string value that are kept; templates are longer
)

// ggufReader reads the primitives of GGUF, little-endian, front to back. Before it
// takes or skips anything it holds the length that the file states against the
// bytes that are left.
type ggufReader struct {
	r    *bufio.Reader
	at   int64 // offset in the file
	left int64 // bytes up to the file's end or the largest header
}

var errGGUFShort = errors.New("the file ends in the middle of its header, or the header is larger than 100 MB")

func newGGUFReader(r io.ReaderAt, size int64) *ggufReader {
	most := min(size, maxGGUFHeader)
	return &ggufReader{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, most), 1<<16), left: most}
}

// take returns the next n bytes, at most 8; they hold until the next call.
func (r *ggufReader) take(n int64) ([]byte, error) {
	if n > r.left {
		return nil, errGGUFShort
	}
	b, err := r.r.Peek(int(n))
	if err != nil {
		return nil, err
	}
	return b, r.skip(n)
}

func (r *ggufReader) skip(n int64) error {
	if n > r.left {
		return errGGUFShort
	}
	// Discard takes an int, which may have 32 bits; n is below 2^31.
	_, err := r.r.Discard(int(n))
	r.at += n
	r.left -= n
	return err
}

// word reads a number of 1, 2, 4 or 8 bytes without interpreting it.
func (r *ggufReader) word(size int64) (uint64, error) {
	b, err := r.take(size)
	if err != nil {
		return 0, err
	}
	switch size {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.LittleEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.LittleEndian.Uint32(b)), nil
	}
	return binary.LittleEndian.Uint64(b), nil
}

func (r *ggufReader) uint32() (uint32, error) {
	n, err := r.word(4)
	return uint32(n), err
}

func (r *ggufReader) uint64() (uint64, error) { return r.word(8) }

// textLength reads the length that precedes a string's bytes.
func (r *ggufReader) textLength() (int64, error) {
	n, err := r.uint64()
	if err == nil && n > uint64(r.left) {
		err = fmt.Errorf("a string of %d bytes, but only %d follow: truncated, or the header lies", n, r.left)
	}
	return int64(n), err
}

// name reads a key or a tensor's name.
func (r *ggufReader) name() (string, error) {
	n, err := r.textLength()
	if err != nil {
		return "", err
	}
	if n > maxGGUFName {
		return "", fmt.Errorf("a name of %d bytes, more than %d", n, maxGGUFName)
	}
	return r.bytes(n)
}

// text reads a string value, and gives "" for one that is too long to be wanted.
func (r *ggufReader) text() (string, error) {
	n, err := r.textLength()
	if err != nil {
		return "", err
	}
	if n > maxGGUFText {
		return "", r.skip(n)
	}
	return r.bytes(n)
}

func (r *ggufReader) skipText() error {
	n, err := r.textLength()
	if err != nil {
		return err
	}
	return r.skip(n)
}

// bytes reads n bytes that are known to be there.
func (r *ggufReader) bytes(n int64) (string, error) {
	b := make([]byte, n)
	_, err := io.ReadFull(r.r, b)
	r.at += n
	r.left -= n
	return string(b), err
}

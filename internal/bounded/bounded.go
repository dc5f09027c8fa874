// Package bounded reads files that may be hostile, compressed by gzip or not: a small file costs little memory, whatever
// sizes it claims. A text in UTF-16 is read as UTF-8.
package bounded

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// The bounds besides the limit. Files that programs write stay below them: of the recordings of PyTorch that
// this was tried with, the values take two to four times the unpacked size, and gzip packs them to a seventh
// to a twenty-fourth of it.
const (
	Base          = 1 << 20  // bytes of memory that any file may take
	PerByte       = 32       // bytes of memory for each byte of the unpacked file
	BasePacked    = 64 << 20 // bytes of memory that any packed file may take
	PerPackedByte = 512      // bytes of memory for each byte of the packed file
	MaxRatio      = 256      // the most bytes that each byte of a packed file may unpack to, beyond BasePacked
	DefaultLimit  = 1 << 30  // bytes, of the file and of the memory
	MaxName       = 4096     // bytes of a name: many things of a file can share a long one, and each is printed with it
)

// ErrTooLarge is the error of a file that is larger than the limit, or takes more
// memory than a file of its size has reason to.
var ErrTooLarge = errors.New("too large")

// Limits bound a file, unpacked, and the memory that is made of it, in bytes. 0 means DefaultLimit.
type Limits struct {
	File, Memory int64

	Share *Share // that the memory is counted in, of a Budget of Memory bytes; nil if no other file is read at the same time
}

// LimitError is the ErrTooLarge of a file that a larger limit would allow.
type LimitError struct {
	Memory bool  // the limit is that of the memory; otherwise that of the file
	Limit  int64 // bytes
	Read   int64 // the bytes of text that were read
}

func (e *LimitError) Error() string {
	if e.Memory {
		return fmt.Sprintf("%v: what the file holds takes more than %s of memory", ErrTooLarge, size(e.Limit))
	}
	return fmt.Sprintf("%v: the file has more than %s", ErrTooLarge, size(e.Limit))
}

func (e *LimitError) Unwrap() error { return ErrTooLarge }

// Reader reads a file's unpacked text, and counts the memory for what is made of it. Only one
// goroutine at a time may use it.
type Reader struct {
	text    *bufio.Reader
	packed  Unpacked // nil if the file is not packed
	limits  Limits
	read    int64 // bytes of text that were read
	used    int64
	allowed int64 // bytes that may be used before bound is called again
}

// Unpacked is a reader of what a packed file unpacks to. NewReader bounds its ratio as that of gzip.
type Unpacked interface {
	io.Reader
	// PackedBytes returns how many bytes of the packed file were read.
	PackedBytes() int64
}

// unzipped is an Unpacked of gzip.
type unzipped struct {
	io.Reader
	packed *counter
}

func (u unzipped) PackedBytes() int64 { return u.packed.n }

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// Name returns a name from a file, cut to MaxName.
func Name(s string) string {
	if len(s) <= MaxName {
		return s
	}
	return strings.ToValidUTF8(s[:MaxName-len(cut)], "") + cut
}

const cut = "..."

// NewReader returns a reader of a file. limit bounds the unpacked file, and also the memory that is
// made of it, in bytes; 0 means DefaultLimit. If r is a Reader already, it is returned unchanged
// with its own limit. An r that is Unpacked may be gzip inside.
func NewReader(r io.Reader, limit int64) (*Reader, error) {
	return NewReaderWithin(r, Limits{File: limit, Memory: limit})
}

// NewReaderWithin is NewReader with a limit for each of the file and the memory.
func NewReaderWithin(r io.Reader, limits Limits) (*Reader, error) {
	if within, ok := r.(*Reader); ok {
		return within, nil
	}
	for _, limit := range []*int64{&limits.File, &limits.Memory} {
		if *limit <= 0 {
			*limit = DefaultLimit
		}
	}
	b := &Reader{limits: limits}
	b.packed, _ = r.(Unpacked)
	in := bufio.NewReaderSize(r, 1<<16)
	if head, _ := in.Peek(2); len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		packed := &counter{r: in}
		zip, err := gzip.NewReader(packed)
		if err != nil {
			return nil, Torn(err)
		}
		if b.packed == nil {
			b.packed = unzipped{zip, packed}
		}
		in = bufio.NewReaderSize(zip, 1<<16)
	}
	head, _ := in.Peek(4)
	if order := utf16Of(head); order != nil {
		in = bufio.NewReaderSize(newUTF16Reader(in, order), 1<<16)
	}
	b.text = in
	return b, nil
}

// Torn turns io.EOF, where more of a file was expected, into an error that says that the file is torn. It returns other
// errors as they are.
func Torn(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file is torn: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// Offset returns how many bytes of text were read.
func (b *Reader) Offset() int64 { return b.read }

// Peek returns the next bytes without reading them; fewer, with an error, at the end.
func (b *Reader) Peek(n int) ([]byte, error) { return b.text.Peek(n) }

// Buffered returns the next bytes that are in memory, without reading them. They are valid until the next read. Fewer than
// least are returned only with an error, that of Peek.
func (b *Reader) Buffered(least int) (text []byte, err error) {
	if b.text.Buffered() < least {
		_, err = b.text.Peek(least)
	}
	text, _ = b.text.Peek(b.text.Buffered())
	return text, err
}

// Read reads text. At the end the error is io.EOF; other errors are ErrTooLarge, and those of the file or of gzip.
func (b *Reader) Read(p []byte) (int, error) {
	n, err := b.text.Read(p)
	return n, b.count(int64(n), err)
}

// ReadByte reads a byte of text.
func (b *Reader) ReadByte() (byte, error) {
	c, err := b.text.ReadByte()
	if err != nil {
		return 0, err
	}
	return c, b.count(1, nil)
}

// Discard reads n bytes that Peek returned.
func (b *Reader) Discard(n int) error {
	n, err := b.text.Discard(n)
	return b.count(int64(n), err)
}

func (b *Reader) count(n int64, err error) error {
	b.read += n
	if b.read > b.limits.File {
		return &LimitError{Limit: b.limits.File, Read: b.read}
	}
	if b.packed != nil && b.read > BasePacked && b.read > BasePacked+MaxRatio*b.packed.PackedBytes() {
		return fmt.Errorf("%w: %s unpack to more than %s, which no recorded data does", ErrTooLarge, size(b.packed.PackedBytes()), size(b.read))
	}
	return err
}

// Stream lifts the limit of the unpacked file, for who keeps little of it: a log may be longer than what is read whole.
// The memory that Use counts stays bounded.
func (b *Reader) Stream() { b.limits.File = math.MaxInt64 }

// Limits returns the limits that the reader was made with.
func (b *Reader) Limits() Limits { return b.limits }

// Use counts memory that is about to be taken for what was read, in bytes. The error is ErrTooLarge: a file
// of this size has no reason to take so much; or ErrShared.
func (b *Reader) Use(n int64) error {
	b.used += n
	if b.used <= b.allowed {
		return nil
	}
	return b.bound()
}

func (b *Reader) bound() error {
	if b.used > b.limits.Memory {
		return &LimitError{Memory: true, Limit: b.limits.Memory, Read: b.read}
	}
	b.allowed = min(b.limits.Memory, Base+PerByte*b.read)
	if b.packed != nil {
		b.allowed = min(b.allowed, BasePacked+PerPackedByte*b.packed.PackedBytes())
	}
	if b.used > b.allowed {
		return fmt.Errorf("%w: the first %s of the file hold what takes more than %s of memory", ErrTooLarge, size(b.read), size(b.allowed))
	}
	if share := b.limits.Share; share != nil {
		held, ok := share.grow(b.used)
		if b.allowed = min(b.allowed, held); !ok {
			return ErrShared
		}
	}
	return nil
}

func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// ReadAll reads r to its end, or fails with ErrTooLarge behind that many bytes. The text is gathered in pieces that are joined
// once: a slice that grows leaves several times its size to Go's collector, which may come late.
func ReadAll(r io.Reader, most int64) ([]byte, error) {
	const piece = 1 << 20
	var pieces [][]byte
	for left := most + 1; left > 0; {
		p, n, err := make([]byte, min(piece, left)), 0, error(nil)
		for n < len(p) && err == nil { // not io.ReadFull, whose error at the end is the same as that of a torn gzip
			var read int
			read, err = r.Read(p[n:])
			n += read
		}
		pieces = append(pieces, p[:n])
		left -= int64(n)
		if errors.Is(err, io.EOF) && left > 0 {
			return bytes.Join(pieces, nil), nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: the file has more than %s", ErrTooLarge, size(most))
}

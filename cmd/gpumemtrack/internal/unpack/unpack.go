// Package unpack unpacks what people send beside gzip: zstd, bzip2, and zip archives of one file, which is how GitHub takes
// recordings. Package bounded unpacks gzip, and bounds what becomes of all of them. The decoders are compiled into the
// command alone: a program that reads a snapshot by tracker/export/files has gzip.
//
// xz is left out: the decoders for Go allocate the dictionary that a file asks for, which can be 4 GiB.
package unpack

import (
	"archive/zip"
	"bufio"
	"bytes"
	"compress/bzip2"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/gpumemtrack/gpumemtrack/internal/archive"
)

// maxWindow bounds the memory of a zstd decoder: zstd itself unpacks larger windows only by --long=31.
const maxWindow = 128 << 20

// Reader reads what a packed file unpacks to.
type Reader struct {
	io.Reader
	packed *counter
	done   func()
	file   io.Closer
}

// New returns a reader of what a file unpacks to, or of the file as it is: one that is not packed, or by gzip or xz, and an archive that
// has several files, is damaged, or comes from a pipe. Closing the reader closes the file.
func New(file io.ReadCloser) io.ReadCloser {
	in := bufio.NewReaderSize(file, 1<<16)
	head, _ := in.Peek(512)
	packed := &counter{r: in}
	switch is := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }; {
	case is("\x28\xb5\x2f\xfd"):
		d, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err == nil { // the error is only of options
			return &Reader{d, packed, d.Close, file}
		}
	case is("BZh") && len(head) >= 10 && slices.Contains(bzip2Blocks, string(head[4:10])):
		return &Reader{bzip2.NewReader(packed), packed, func() {}, file}
	case is("PK\x03\x04") && !bytes.Contains(head, []byte(checkpoint)):
		if f, ok := file.(regular); ok {
			if r := member(f); r != nil {
				return r
			}
		}
	}
	return plain{in, file}
}

// bzip2Blocks are how the first block begins: with the digits of pi, or in an empty file those of its square root.
var bzip2Blocks = []string{"1AY&SY", "\x17rE8P\x90"}

type plain struct {
	io.Reader
	io.Closer
}

// regular is a file that can be read at any place.
type regular interface {
	io.ReadCloser
	io.ReaderAt
	Stat() (os.FileInfo, error)
}

// checkpoint ends the name of the first file of a checkpoint of PyTorch, which is an archive that stays as it is.
const checkpoint = "/data.pkl"

// member returns a reader of the only file in an archive; nil if there is none.
func member(f regular) io.ReadCloser {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	const most = 1 << 10 // with folders and what macOS adds
	listed, err := archive.Open(f, info.Size(), most)
	if err != nil {
		return nil
	}
	members := slices.DeleteFunc(slices.Clone(listed.File), func(m *zip.File) bool {
		return strings.HasSuffix(m.Name, "/") || strings.HasPrefix(m.Name, "__MACOSX/")
	})
	if len(members) != 1 {
		return nil
	}
	text, err := members[0].Open()
	if err != nil {
		return nil
	}
	size := min(members[0].CompressedSize64, uint64(info.Size()))
	return &Reader{text, &counter{n: int64(size)}, func() { text.Close() }, f}
}

// PackedBytes returns how many bytes of the packed file were read, or, of a file in an archive, how many it has.
func (r *Reader) PackedBytes() int64 { return r.packed.n }

// Close frees the decoder's memory and closes the file.
func (r *Reader) Close() error {
	r.done()
	return r.file.Close()
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// Package archive opens ZIP archives that may be hostile. Package archive/zip makes room for as many files as an
// archive says that it has, which is bounded by the file's size, and a sparse file of any size costs nothing to make.
package archive

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// perFile is how many bytes of the list of files each of them may take, on average: 46, its name, and 28 in an
// archive of more than 4 GiB.
const perFile = 256

// ends are the bytes at an archive's end that are read to find the list.
const ends = 1 << 18

// Open reads the list of an archive's files. It is an error if there are more than most; then no room was made for
// them.
func Open(r io.ReaderAt, size int64, most int) (*zip.Reader, error) {
	list := &budget{r: r, left: ends + perFile*int64(most)}
	n, err := files(list, size)
	if err != nil {
		return nil, err
	}
	if n > uint64(most) {
		return nil, fmt.Errorf("%w: it says that it has %d files, want at most %d", bounded.ErrTooLarge, n, most)
	}
	z, err := zip.NewReader(list, size)
	if err != nil {
		return nil, fmt.Errorf("it is truncated, or no ZIP file: %w", err)
	}
	if len(z.File) > most { // what the list's end says is the number modulo 65,536
		return nil, fmt.Errorf("%w: it has %d files, want at most %d", bounded.ErrTooLarge, len(z.File), most)
	}
	list.opened = true
	return z, nil
}

// budget is a file of which no more than so many bytes are read until it is opened.
type budget struct {
	r      io.ReaderAt
	left   int64
	opened bool
}

func (b *budget) ReadAt(p []byte, at int64) (int, error) {
	if b.opened {
		return b.r.ReadAt(p, at)
	}
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, fmt.Errorf("%w: its list of files is longer than one of so few has reason to be", bounded.ErrTooLarge)
	}
	return b.r.ReadAt(p, at)
}

// files returns how many files an archive says that it has, before package zip makes room for them.
func files(r io.ReaderAt, size int64) (uint64, error) {
	const end, end64, locator = 22, 56, 20
	tail := make([]byte, min(size, end+1<<16))
	if n, err := r.ReadAt(tail, size-int64(len(tail))); n < len(tail) {
		return 0, fmt.Errorf("read the end of the archive: %w", err)
	}
	at := bytes.LastIndex(tail, []byte("PK\x05\x06"))
	if at < 0 || len(tail)-at < end {
		return 0, errors.New("it is truncated: the end of the ZIP file is missing")
	}
	entries := uint64(binary.LittleEndian.Uint16(tail[at+10:]))
	if at >= locator && string(tail[at-locator:at-locator+4]) == "PK\x06\x07" {
		var b [end64]byte
		if _, err := r.ReadAt(b[:], int64(binary.LittleEndian.Uint64(tail[at-locator+8:])&(1<<62-1))); err != nil {
			return 0, fmt.Errorf("it is truncated: %w", err)
		}
		entries64 := binary.LittleEndian.Uint64(b[32:])
		if entries == 1<<16-1 {
			return entries64, nil
		}
		entries = max(entries, entries64)
	}
	return entries, nil
}

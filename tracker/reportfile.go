package tracker

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// report writes each block of text, whole and at once, to the report's file and
// to the writer that the configuration names. An error is kept, logged once,
// and does not stop later blocks. It is guarded by the tracker's marking lock.
type report struct {
	file   *os.File
	size   int64 // of the blocks that the file holds whole
	writer io.Writer
	buf    []byte
	log    *slog.Logger

	mu   sync.Mutex // guards err
	err  error
	lost int // blocks that the file lacks
}

// createReportFile makes the file of a report that begins at the given moment:
// no other has its name.
func createReportFile(dir string, at time.Time) (*os.File, error) {
	name := at.Format(stamp)
	if runtime.GOOS == "windows" {
		name = strings.ReplaceAll(name, ":", "-") // no colon in a file's name there
	}
	for n := 1; ; n++ {
		file := name
		if n > 1 {
			file = fmt.Sprintf("%s-%d", name, n)
		}
		f, err := os.OpenFile(filepath.Join(dir, file+"-gpu_mem_track.txt"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}

// header writes the report's first lines; unlike later blocks, it must succeed.
func (r *report) header(text []byte) error {
	if r.file != nil {
		if _, err := r.file.Write(text); err != nil {
			return err
		}
		r.size = int64(len(text))
	}
	if r.writer != nil {
		return writeShared(r.writer, text)
	}
	return nil
}

// write appends the mark's block.
func (r *report) write(m *Mark) {
	r.buf = appendMark(r.buf[:0], m)
	if r.file != nil {
		r.keep(r.writeFile())
	}
	if r.writer != nil {
		r.keep(writeShared(r.writer, r.buf))
	}
}

// writeFile appends the block in one write. Of a block that did not fit, nothing stays:
// the file is always whole blocks, and the next one that fits says how many are missing.
func (r *report) writeFile() error {
	block := r.buf
	if r.lost > 0 {
		block = append(fmt.Appendf(nil, "\n%d marks are missing here: the file could not be written\n", r.lost), block...)
	}
	n, err := r.file.Write(block)
	if err == nil {
		r.size += int64(n)
		r.lost = 0
		return nil
	}
	r.lost++
	if n > 0 {
		err = errors.Join(err, r.file.Truncate(r.size))
	}
	_, seekErr := r.file.Seek(r.size, io.SeekStart)
	return errors.Join(err, seekErr)
}

// keep remembers the first error and logs it.
func (r *report) keep(err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = fmt.Errorf("write the memory report: %w", err)
		r.log.Error("gpumemtrack: the memory report could not be written; tracking goes on", "err", err)
	}
}

func (r *report) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *report) close() {
	if r.file != nil {
		r.keep(r.file.Close())
		r.file = nil
	}
	r.writer = nil
}

// sharedWriters serialises the trackers that write to one writer, so that their
// blocks stay whole. It is one lock for all writers: blocks are rare and short.
var sharedWriters sync.Mutex

func writeShared(w io.Writer, block []byte) error {
	sharedWriters.Lock()
	defer sharedWriters.Unlock()
	n, err := w.Write(block)
	if err == nil && n < len(block) {
		err = io.ErrShortWrite
	}
	return err
}

package report

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const (
	DefaultMaxReportBytes = 64 * alloc.MiB
	MinReportBytes        = 8 * alloc.KiB

	reportSuffix = "-gpu_mem_track.txt"
)

// ReportFile is the file of a report. When it has grown to half of Max, it is renamed and replaces
// the older part, and a new file begins. A file that was deleted or moved is replaced too. If
// blocks are missing, the file says so. The tracker's marking lock guards it.
type ReportFile struct {
	Dir    string
	Start  time.Time // names the file
	Device string
	Max    alloc.Bytes // most bytes of both parts together

	Path string      // path of the file, set by Create
	file *os.File    // nil if it could not be made
	made os.FileInfo // which file that is

	first   int             // the number of its first mark; 0 if it has none
	older   int             // the number of the older part's first mark
	aside   string          // name of the older part, while no new file has begun
	missing int             // marks that could not be written since the last one
	levels  snapshot.Levels // at the last mark
}

// Create makes the file under a name that no other file has; it tries the earlier name first. For
// the first file it also makes the directory. A directory that is taken away later is not made
// again: it may be a mount that comes back.
func (f *ReportFile) Create() (err error) {
	if abs, err := filepath.Abs(f.Dir); err == nil {
		f.Dir = abs // the program may change its directory
	}
	name := f.Start.Format(stampInName)
	path := f.Path
	if path == "" {
		if err := os.MkdirAll(f.Dir, 0o755); err != nil {
			return err
		}
		path = filepath.Join(f.Dir, name+reportSuffix)
	}
	for n := 2; ; n++ {
		f.file, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o644)
		if !errors.Is(err, fs.ErrExist) {
			break
		}
		path = filepath.Join(f.Dir, fmt.Sprintf("%s-%d%s", name, n, reportSuffix))
	}
	if err != nil {
		return err
	}
	f.Path = path
	f.made, err = f.file.Stat()
	return err
}

// begin writes the first lines. Unlike later ones, they must be written.
func (f *ReportFile) begin(levels snapshot.Levels) error {
	f.levels = levels
	_, err := f.file.Write(f.header(f.Start, 0))
	return err
}

// remove deletes a file whose first lines could not be written.
func (f *ReportFile) remove() error { return errors.Join(f.file.Close(), os.Remove(f.Path)) }

// close closes the file.
func (f *ReportFile) close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// write appends the mark's block.
func (f *ReportFile) write(m *snapshot.Mark, block []byte) error {
	if err := f.append(m, block); err != nil {
		f.missing++
		return err
	}
	f.missing, f.levels = 0, m.Levels
	return nil
}

// append writes the block, and the header that may have to come before it, in one write. If the
// disk is full it removes the part that was written, so that a file always consists of complete blocks.
func (f *ReportFile) append(m *snapshot.Mark, block []byte) error {
	half := int64(f.Max / 2)
	size := f.size()
	if f.first > 0 && size > 0 && size+int64(len(block)) > half {
		if err := f.setAside(); err != nil {
			return err
		}
		size = -1
	}
	if size < 0 {
		if err := f.Create(); err != nil {
			return err
		}
		size = 0
	}
	var first []byte
	if size == 0 {
		first = f.header(m.Time, m.Seq)
	}
	if f.missing > 0 {
		first = appendMissing(first, f.missing, "the file could not be written")
	}
	text := shorten(block, int(half-size)-len(first))
	if len(first) > 0 {
		text = append(first, text...)
	}
	if n, err := f.file.Write(text); err != nil {
		if n > 0 {
			err = errors.Join(err, f.file.Truncate(size))
		}
		return err
	}
	if size == 0 || f.first == 0 {
		f.first, f.aside = m.Seq, ""
	}
	return nil
}

// size returns the file's size, or -1 if it is not where it was made any more.
func (f *ReportFile) size() int64 {
	if f.file == nil {
		return -1
	}
	info, err := os.Stat(f.Path)
	if errors.Is(err, fs.ErrPermission) {
		info, err = f.file.Stat() // it cannot be looked for, so it counts as there
	}
	if err != nil || !os.SameFile(info, f.made) {
		f.file.Close()
		f.file = nil
		return -1
	}
	return info.Size()
}

// setAside makes the file the older part.
func (f *ReportFile) setAside() error {
	older := strings.TrimSuffix(f.Path, reportSuffix) + "-older" + reportSuffix
	f.file.Close()
	f.file = nil
	if err := os.Rename(f.Path, older); err != nil {
		f.file, _ = os.OpenFile(f.Path, os.O_APPEND|os.O_WRONLY, 0)
		return err
	}
	f.older, f.first, f.aside = f.first, 0, filepath.Base(older)
	return nil
}

// header returns the first lines of a file whose first mark has that number.
func (f *ReportFile) header(at time.Time, mark int) []byte {
	text := appendHeader(nil, at, f.Device, f.levels)
	if mark <= 1 {
		return text
	}
	text = fmt.Appendf(text, "This file begins with mark %d. ", mark)
	if f.aside == "" {
		return append(text, "The file with the marks before it was deleted, moved or emptied.\n"...)
	}
	text = fmt.Appendf(text, "The marks from %d on before it are in %s", f.older, f.aside)
	if f.older > 1 {
		text = fmt.Appendf(text, "; those before are dropped, as a report takes no more than %v: see Config.MaxReportBytes", f.Max)
	}
	return append(text, ".\n"...)
}

// shorten leaves out changes at the end of a block that is larger than room bytes, and
// keeps the totals.
func shorten(block []byte, room int) []byte {
	const note = "%d more changes are left out: see Config.MaxReportBytes\n"
	if len(block) <= room {
		return block
	}
	totals := block[bytes.LastIndex(block, []byte("\nAt ")):]
	kept := block[:max(0, room-len(totals)-len(note)-20)]
	kept = kept[:1+max(0, lastChange(kept))]
	left := 0
	for line := range bytes.Lines(block[len(kept):]) {
		if isChange(line) {
			left++
		}
	}
	return slices.Concat(kept, fmt.Appendf(nil, note, left), totals)
}

// lastChange returns where the line break before the last change is, or -1.
func lastChange(block []byte) int {
	return max(bytes.LastIndex(block, []byte("\n+ | ")), bytes.LastIndex(block, []byte("\n- | ")))
}

func isChange(line []byte) bool {
	return bytes.HasPrefix(line, []byte("+ | ")) || bytes.HasPrefix(line, []byte("- | "))
}

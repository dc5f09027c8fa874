package tracker

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const (
	defaultMaxDumps     = 8
	defaultMaxDumpBytes = 16 * alloc.MiB
)

// dumps is a tracker's files of dumps.
type dumps struct {
	max      int         // of the process, in a directory
	maxBytes alloc.Bytes // of each

	mu sync.Mutex // one file at a time
	// signals has the channels that end each DumpOnSignal, and where its signals
	// come; guarded by mu.
	signals map[chan struct{}]chan os.Signal
}

// dumpFiles counts those of the process, whose names must differ.
var dumpFiles atomic.Int64

// save writes the dump to a new file, when no other is being written.
func (d *dumps) save(dir string, dump *snapshot.Record) (path string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.write(dir, dump)
}

// write writes the dump to a new file; the caller holds d.mu.
func (d *dumps) write(dir string, dump *snapshot.Record) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("write dump: %w", err)
	}
	deleteAbandoned(dir)
	name := dumpName(dump.Time, processName(), dumpFiles.Add(1))
	path = filepath.Join(dir, name)
	if err := createDump(path, dump, d.maxBytes); err != nil {
		return "", err
	}
	return path, deleteOldDumps(dir, name, d.max)
}

// stopAll ends every DumpOnSignal, when no file is being written.
func (d *dumps) stopAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for done := range d.signals {
		d.stop(done)
	}
}

// stop ends a DumpOnSignal, once; the caller holds d.mu.
func (d *dumps) stop(done chan struct{}) {
	if got, ok := d.signals[done]; ok {
		signal.Stop(got)
		close(done)
		delete(d.signals, done)
	}
}

// createDump writes as much of the dump as the limit allows to a new file. It has
// another name first, so that there is never a part of one.
func createDump(path string, d *snapshot.Record, limit alloc.Bytes) (err error) {
	f, err := createTemp(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write dump: %w", err)
	}
	defer f.unlock()
	err = errors.Join(writeWithin(f.File, d, limit), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// writeWithin writes the dump to an empty file with all the detail that the limit
// allows.
func writeWithin(f *os.File, d *snapshot.Record, limit alloc.Bytes) error {
	for {
		if d.Size() <= limit {
			err := d.WriteJSON(&limitedFile{f, limit})
			if !errors.Is(err, errTooLarge) {
				return err
			}
			if _, err = f.Seek(0, io.SeekStart); err == nil {
				err = f.Truncate(0)
			}
			if err != nil {
				return fmt.Errorf("write dump: %w", err)
			}
		}
		if !d.Shrink() {
			return fmt.Errorf("write dump: without any detail it takes more than the %v that it may: see Config.MaxDumpBytes", limit)
		}
	}
}

var errTooLarge = errors.New("larger than a dump may be")

// limitedFile is a file that takes no more than so many bytes.
type limitedFile struct {
	file *os.File
	left alloc.Bytes
}

func (l *limitedFile) Write(b []byte) (int, error) {
	if alloc.Bytes(len(b)) > l.left {
		return 0, errTooLarge
	}
	l.left -= alloc.Bytes(len(b))
	return l.file.Write(b)
}

// dumpTime begins the names of dumps, so that their order is that of time.
const dumpTime = "20060102T150405.000000"

// dumpName names the n-th dump of a process.
func dumpName(at time.Time, process string, n int64) string {
	return fmt.Sprintf("gpumemtrack-%s-%s-%06d.dump.json", at.UTC().Format(dumpTime), process, n)
}

// isDumpOf reports whether dumpName gave that name to a dump of the process.
func isDumpOf(name, process string) bool {
	name, ok := strings.CutPrefix(name, "gpumemtrack-")
	if !ok || len(name) < len(dumpTime) {
		return false
	}
	number, ok := strings.CutPrefix(name[len(dumpTime):], "-"+process+"-")
	number, suffix := strings.CutSuffix(number, ".dump.json")
	return ok && suffix && !strings.Contains(number, "-")
}

// processName tells this process from others that write to the directory, which
// machines may share.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	host = strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '.') {
			return r
		}
		return '_'
	}, host)
	return fmt.Sprintf("%s-%d", cmp.Or(host[:min(len(host), 64)], "host"), os.Getpid())
}

// deleteOldDumps leaves the one just written and, up to the number to keep, the
// newest others that this process wrote to the directory, by their names.
func deleteOldDumps(dir, written string, keep int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("delete old dumps: %w", err)
	}
	process := processName()
	var names []string
	for _, e := range entries { // in the order of their names
		if e.Name() != written && isDumpOf(e.Name(), process) {
			names = append(names, e.Name())
		}
	}
	var errs []error
	for _, name := range names[:max(0, len(names)-(keep-1))] {
		if err := os.Remove(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err) // another tracker of the process deletes too
		}
	}
	return errors.Join(errs...)
}

var (
	errLocked  = errors.New("another has it locked")
	errNoLocks = errors.New("files cannot be locked here")
)

// LateWriteError says that work of the device wrote to memory after its Free: it corrupts what the
// next owner has there. See Config.FindLateWrites.
type LateWriteError struct {
	Device string      // name and ordinal
	Ptr    alloc.Ptr   // the first byte that was written to
	Size   alloc.Bytes // from there to the last

	Allocated mem.Frame // the line that allocated the buffer that was freed
	Freed     mem.Frame // the line that freed it
	Reused    mem.Frame // the line that was given the memory next; zero if there is none
}

func (e *LateWriteError) Error() string {
	next := "and is not allocated again"
	if e.Reused != (mem.Frame{}) {
		next = fmt.Sprintf("and allocated again at %v", e.Reused)
	}
	return fmt.Sprintf("work wrote to %v at %v on %s after its free: the memory was allocated at %v, freed at %v, %s: "+
		"wait for the work before Free, or name its stream with RecordStream or FreeOn", e.Size, e.Ptr, text.Line(e.Device), e.Allocated, e.Freed, next)
}

// maxLateWrites bounds what is kept and logged.
const maxLateWrites = 16

// LateWrites returns the first late writes found, up to sixteen: see Config.FindLateWrites.
func (t *MemTracker) LateWrites() []*LateWriteError {
	if t.freed == nil {
		return nil
	}
	t.freed.mu.Lock()
	defer t.freed.mu.Unlock()
	return append([]*LateWriteError(nil), t.freed.found...)
}

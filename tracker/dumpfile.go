package tracker

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

const (
	defaultMaxDumps     = 8
	defaultMaxDumpBytes = 16 * alloc.MiB

	dumpName = "gpumemtrack-*.dump.json"
)

// DumpFile writes a Dump to a new file in the directory, which is made if it is
// missing, and returns its path. The file appears only when it is whole.
//
// The directory holds at most Config.MaxDumps such files: the oldest are deleted,
// whichever program wrote them. So are the unfinished files of programs that were
// killed.
//
// A file takes at most Config.MaxDumpBytes. A dump that would be larger loses detail
// until it fits: the older events and marks, then the cache's segments, then the
// single allocations, then most of the other events, then the call sites that hold least.
// Dump.LeftOut says what is missing.
func (t *MemTracker) DumpFile(dir, reason string) (path string, err error) {
	d, err := t.newDump(reason, t.dumps.maxBytes)
	if err != nil {
		return "", err
	}
	t.dumps.mu.Lock()
	defer t.dumps.mu.Unlock()
	return t.dumps.write(dir, d)
}

// dumps is a tracker's files of dumps.
type dumps struct {
	max      int         // in a directory
	maxBytes alloc.Bytes // of each

	mu sync.Mutex // one file at a time
	// signals has the channels that end each DumpOnSignal, and where its signals
	// come; guarded by mu.
	signals map[chan struct{}]chan os.Signal
}

// dumpFiles counts those of the process, whose names must differ.
var dumpFiles atomic.Int64

// write writes the dump to a new file; the caller holds d.mu.
func (d *dumps) write(dir string, dump *Dump) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("write dump: %w", err)
	}
	deleteAbandoned(dir)
	name := fmt.Sprintf("gpumemtrack-%s-%d-%06d.dump.json",
		dump.Time.UTC().Format("20060102T150405.000000"), os.Getpid(), dumpFiles.Add(1))
	path = filepath.Join(dir, name)
	if err := dump.create(path, d.maxBytes); err != nil {
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

// create writes as much of the dump as the limit allows to a new file. It has
// another name first, so that there is never a part of one.
func (d *Dump) create(path string, limit alloc.Bytes) (err error) {
	f, err := createTemp(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write dump: %w", err)
	}
	defer f.unlock()
	err = errors.Join(d.writeWithin(limit, f.File), f.Close())
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
func (d *Dump) writeWithin(limit alloc.Bytes, f *os.File) error {
	for {
		if d.size() <= limit {
			err := d.write(&limitedFile{f, limit})
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
		if !d.shrink() {
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

// deleteOldDumps leaves the one just written and, up to the number to keep, the
// newest others of the directory, by their names, which begin with the time.
func deleteOldDumps(dir, written string, keep int) error {
	names, err := fs.Glob(os.DirFS(dir), dumpName)
	if err != nil {
		return fmt.Errorf("delete old dumps: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == written })
	slices.Sort(names)
	var errs []error
	for _, name := range names[:max(0, len(names)-(keep-1))] {
		if err := os.Remove(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err) // who else writes there deletes too
		}
	}
	return errors.Join(errs...)
}

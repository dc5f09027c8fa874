package tracker

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
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
// The directory holds at most Config.MaxDumps such files: the oldest are
// deleted, whichever program wrote them. A file takes at most
// Config.MaxDumpBytes: a dump that is larger loses the older events first, and
// then the single allocations. Groups, call sites, levels and segments always
// stay; where they do not fit, there is an error and no file.
func (t *MemTracker) DumpFile(dir, reason string) (path string, err error) {
	t.dumps.mu.Lock()
	defer t.dumps.mu.Unlock()
	d, err := t.newDump(reason)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("write dump: %w", err)
	}
	name := fmt.Sprintf("gpumemtrack-%s-%d-%06d.dump.json",
		d.Time.UTC().Format("20060102T150405.000000"), os.Getpid(), dumpFiles.Add(1))
	path = filepath.Join(dir, name)
	if err := d.create(path, t.dumps.maxBytes); err != nil {
		return "", err
	}
	return path, deleteOldDumps(dir, name, t.dumps.max)
}

// dumpFiles counts those of the process, whose names must differ.
var dumpFiles atomic.Int64

// dumps is a tracker's files of dumps.
type dumps struct {
	max      int         // in a directory
	maxBytes alloc.Bytes // of each

	mu sync.Mutex // one at a time

	onSignal sync.Mutex // guards stops
	stops    []func()
}

// stop ends every DumpOnSignal.
func (d *dumps) stop() {
	d.onSignal.Lock()
	defer d.onSignal.Unlock()
	for _, stop := range d.stops {
		stop()
	}
	d.stops = nil
}

// create writes as much of the dump as the limit allows to a new file.
func (d *Dump) create(path string, limit alloc.Bytes) error {
	for _, size := range []struct {
		allocations bool
		events      int
	}{{true, math.MaxInt}, {true, 1 << 12}, {false, 1 << 12}, {false, 1 << 8}, {false, 0}} {
		err := writeWhole(path, limit, d.cut(size.allocations, size.events))
		if !errors.Is(err, errTooLarge) {
			return err
		}
	}
	return fmt.Errorf("write dump: the call sites alone take more than the %v that a dump may", limit)
}

var errTooLarge = errors.New("larger than a dump may be")

// writeWhole makes the file under another name first, so that there is never a
// part of one.
func writeWhole(path string, limit alloc.Bytes, d *Dump) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".gpumemtrack-*.tmp")
	if err != nil {
		return fmt.Errorf("write dump: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = errors.Join(d.write(&limitedFile{f, limit}), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

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

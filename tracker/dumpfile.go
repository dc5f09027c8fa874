package tracker

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
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
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/shrink"
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
		if shrink.Size(d) <= limit {
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
		if !shrink.Once(d) {
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

// tempFile is a file that is being written under a name of its own. Its writer has it
// locked, which ends with the process: so others see that a writer was killed.
type tempFile struct {
	*os.File
	lock *os.File // nil where there are no locks
}

const tempPrefix, tempSuffix = ".gpumemtrack-", ".tmp"

// abandonedAfter is how long ago a temporary file was last written to if its writer
// counts as dead although no lock can tell: on another machine, or without locks.
const abandonedAfter = time.Hour

// thisHost is how the names of this machine's temporary files begin.
var thisHost = sync.OnceValue(func() string {
	name, _ := os.Hostname()
	hash := fnv.New32a()
	hash.Write([]byte(name))
	return fmt.Sprintf("%s%08x-", tempPrefix, hash.Sum32())
})

func createTemp(dir string) (tempFile, error) {
	for {
		f, err := os.CreateTemp(dir, thisHost()+"*"+tempSuffix)
		if err != nil {
			return tempFile{}, err
		}
		lock, err := lockFile(f.Name())
		if err == nil && !isAt(f.Name(), f) {
			err = fs.ErrNotExist
		}
		if !errors.Is(err, errLocked) && !errors.Is(err, fs.ErrNotExist) {
			return tempFile{f, lock}, nil
		}
		f.Close() // another took it for abandoned before it was locked
		lock.Close()
	}
}

// unlock is called when the file is whole and has its name, or is gone.
func (f tempFile) unlock() { f.lock.Close() }

// isAt reports whether the path is that of an open file.
func isAt(path string, f *os.File) bool {
	there, err := os.Stat(path)
	open, openErr := f.Stat()
	return err == nil && openErr == nil && os.SameFile(there, open)
}

// deleteAbandoned deletes the temporary files of a directory whose writers are
// dead, as far as it may.
func deleteAbandoned(dir string) {
	names, _ := fs.Glob(os.DirFS(dir), tempPrefix+"*"+tempSuffix)
	for _, name := range names {
		path := filepath.Join(dir, name)
		if lock, abandoned := isAbandoned(path); abandoned {
			os.Remove(path)
			lock.Close()
		}
	}
}

// isAbandoned reports whether the writer of a temporary file is dead, and returns
// the lock on it that showed it, if any.
func isAbandoned(path string) (lock *os.File, abandoned bool) {
	if strings.HasPrefix(filepath.Base(path), thisHost()) {
		lock, err := lockFile(path)
		if err == nil || errors.Is(err, errLocked) {
			return lock, err == nil
		}
	}
	info, err := os.Stat(path)
	return nil, err == nil && time.Since(info.ModTime()) > abandonedAfter
}

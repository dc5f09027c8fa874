// Package dumps keeps a directory of dumps: each is a file that appears when it is complete, and the oldest
// ones of this process go. It never deletes what another process has written, except what that
// process was killed at.
package dumps

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
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

// dumpFiles counts the dumps of this process, so that their names differ.
var dumpFiles atomic.Int64

// Write writes as much of a dump as the limit allows to a new file in the directory, which it creates if
// it is missing, and returns the file's path. Then it deletes all but the newest of this process's dumps
// there, as many as are to be kept.
func Write(dir string, dump *snapshot.Dump, keep int, limit alloc.Bytes) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("write dump: %w", err)
	}
	DeleteAbandoned(dir)
	name := dumpName(dump.Snapshot.Time, processName(), dumpFiles.Add(1))
	path = filepath.Join(dir, name)
	if err := createDump(path, dump, limit); err != nil {
		return "", err
	}
	return path, deleteOldDumps(dir, name, keep)
}

// createDump writes as much of the dump as the limit allows to a new file. It has
// another name first, so that there is never a part of one.
func createDump(path string, d *snapshot.Dump, limit alloc.Bytes) (err error) {
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
func writeWithin(f *os.File, d *snapshot.Dump, limit alloc.Bytes) error {
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

// limitedFile is a file that refuses to grow beyond a number of bytes.
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

// dumpTime begins the names of dumps, so that sorting by name sorts by time.
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

// processName distinguishes this process from others that write to the directory, also from those on other
// machines that share it.
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

// deleteOldDumps keeps the dump just written and the newest others of this process in the
// directory, keep in all. It goes by the files' names.
func deleteOldDumps(dir, written string, keep int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("delete old dumps: %w", err)
	}
	process := processName()
	var names []string
	for _, e := range entries { // sorted by name
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

// tempFile is a file being written, under a temporary name. Its writer keeps a lock on it. The lock
// ends with the process, so others can tell that a writer was killed.
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

// unlock is called when the file is complete and has its name, or is gone.
func (f tempFile) unlock() { f.lock.Close() }

// isAt reports whether the open file f is still the one at path.
func isAt(path string, f *os.File) bool {
	there, err := os.Stat(path)
	open, openErr := f.Stat()
	return err == nil && openErr == nil && os.SameFile(there, open)
}

// DeleteAbandoned deletes the temporary files in a directory whose writers are dead. A file that
// cannot be deleted stays; on Windows that is every file that is open.
func DeleteAbandoned(dir string) {
	names, _ := fs.Glob(os.DirFS(dir), tempPrefix+"*"+tempSuffix)
	for _, name := range names {
		path := filepath.Join(dir, name)
		if lock, abandoned := isAbandoned(path); abandoned {
			os.Remove(path)
			lock.Close()
		}
	}
}

// isAbandoned reports whether the writer of a temporary file is dead. If getting the file's lock
// showed that, it returns the lock.
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

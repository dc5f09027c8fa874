package dumps

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

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

// unlock is called when the file is whole and has its name, or is gone.
func (f tempFile) unlock() { f.lock.Close() }

// isAt reports whether the open file f is still the one at path.
func isAt(path string, f *os.File) bool {
	there, err := os.Stat(path)
	open, openErr := f.Stat()
	return err == nil && openErr == nil && os.SameFile(there, open)
}

// deleteAbandoned deletes the temporary files in a directory whose writers are dead. A file that
// cannot be deleted stays.
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

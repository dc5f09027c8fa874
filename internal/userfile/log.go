package userfile

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// Log is a file that grows by whole records, such as lines of JSON, so that it can be read at any
// moment. If a record cannot be written whole, its part is cut off again, and nothing more is
// written. It may be used from any goroutine.
type Log struct {
	path string
	f    *os.File

	mu    sync.Mutex
	whole int64 // bytes of complete records
	err   error
}

// CreateLog makes a new file, as Create does.
func CreateLog(path string, overwrite bool) (*Log, error) {
	f, err := Create(path, overwrite)
	if err != nil {
		return nil, err
	}
	return &Log{path: path, f: f}, nil
}

// Write appends one record, or several whole ones. After a failure it returns the same error again.
func (l *Log) Write(record []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, l.err
	}
	n, err := l.f.Write(record)
	if err != nil {
		l.err = errors.Join(err, l.f.Truncate(l.whole))
		return 0, l.err
	}
	l.whole += int64(n)
	return n, nil
}

// Close closes the file. It returns the error that a write had, or says that the file was removed
// meanwhile, which no write notices.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && removed(l.f) {
		l.err = &fs.PathError{Op: "write", Path: l.path, Err: errors.New("the file was removed while it was written")}
	}
	return errors.Join(l.err, l.f.Close())
}

// Discard closes the file and removes it.
func (l *Log) Discard() error { return errors.Join(l.f.Close(), os.Remove(l.path)) }

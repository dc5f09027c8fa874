// Package userfile opens and creates the files that a person names.
package userfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// Open opens a file to read it. A named pipe is an error: to open one waits for a
// writer that may never come.
func Open(path string) (*os.File, error) {
	// What a shell makes of <(command) is below /dev.
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeNamedPipe != 0 && !strings.HasPrefix(path, "/dev/") {
		return nil, fmt.Errorf("%s is a named pipe, not a file: write its contents to a file first", path)
	}
	return os.Open(path)
}

// Create makes a new file, with the permissions that the umask leaves. If the file
// exists, the error is fs.ErrExist, unless overwrite is true: then it is removed first. A symbolic
// link itself is removed, not the file that it leads to.
func Create(path string, overwrite bool) (*os.File, error) {
	if err := check(path, overwrite); err != nil {
		return nil, err
	}
	if overwrite {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

// Write makes a file that appears only when it is complete. A file that is there already is
// treated as Create treats it, and stays if write fails. Errors name the path given.
func Write(path string, overwrite bool, write func(io.Writer) error) (err error) {
	if err := check(path, overwrite); err != nil {
		return err
	}
	draft := filepath.Join(filepath.Dir(path), fmt.Sprintf(".gpumemtrack-%x.tmp", rand.Uint64()))
	drafts.begin(draft)
	defer drafts.end(draft)
	f, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return named(err, path)
	}
	defer func() {
		if err != nil {
			err = errors.Join(named(err, path), os.Remove(draft))
		}
	}()
	if err := errors.Join(write(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(draft, path)
}

func check(path string, overwrite bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !overwrite:
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	case !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0:
		return &fs.PathError{Op: "create", Path: path, Err: errors.New("it is not a regular file, so it is not overwritten")}
	}
	return nil
}

// named puts the path that the person gave into an error.
func named(err error, path string) error {
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: "create", Path: path, Err: of.Err}
	}
	if of, ok := errors.AsType[*os.LinkError](err); ok {
		return &fs.PathError{Op: "create", Path: path, Err: of.Err}
	}
	return err
}

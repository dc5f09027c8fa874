package main

import (
	"errors"
	"fmt"
	"os"
)

// existsError says the same of every file that is there already.
func existsError(path string) error {
	return fmt.Errorf("%s exists: choose another name, or overwrite it with -f", path)
}

// canCreate finds out whether a file can be written, before the work for it is done.
func canCreate(path string, overwrite bool) error {
	if info, err := os.Lstat(path); err == nil {
		switch {
		case !overwrite:
			return existsError(path)
		case !info.Mode().IsRegular() && info.Mode()&os.ModeSymlink == 0:
			return fmt.Errorf("cannot overwrite %s: it is not a regular file", path)
		case info.Mode().IsRegular():
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return fmt.Errorf("cannot overwrite: %w", err)
			}
			return f.Close()
		}
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("cannot write here: %w: name a directory that exists and may be written, with -o", err)
	}
	return errors.Join(f.Close(), os.Remove(path))
}

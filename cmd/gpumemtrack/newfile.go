package main

import (
	"errors"
	"fmt"
	"os"
)

func canCreate(path string, overwrite bool) error {
	if _, err := os.Lstat(path); err == nil {
		if !overwrite {
			return fmt.Errorf("%s exists: choose another name, or overwrite it with -f", path)
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("cannot overwrite: %w", err)
		}
		return f.Close()
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("cannot write here: %w: name a directory that exists and may be written, with -o", err)
	}
	return errors.Join(f.Close(), os.Remove(path))
}

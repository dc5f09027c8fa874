//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package dumps

import (
	"errors"
	"os"
	"syscall"
)

// lockFile opens a file and locks it until it is closed. If another has it locked,
// the error is errLocked; where files cannot be locked, it is errNoLocks.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errLocked
	}
	return nil, errNoLocks
}

package smalldisk

import (
	"strconv"

	"golang.org/x/sys/unix"
)

func mount(dir string, size int) (unmount func() error, err error) {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.Itoa(size)); err != nil {
		return nil, err
	}
	return func() error { return unix.Unmount(dir, unix.MNT_DETACH) }, nil
}

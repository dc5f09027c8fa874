package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Open reads what an argument names: a file, - for standard input, or the URL of a live page.
func Open(a *App, word string) (*files.File, error) {
	in, err := OpenInput(a, word)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return in.File()
}

func IsURL(word string) bool {
	return strings.HasPrefix(word, "http://") || strings.HasPrefix(word, "https://")
}

// ErrNoDump is the error of a file that has no dump.
var ErrNoDump = errors.New("want a dump, or a memory snapshot of PyTorch")

// OpenDump reads the dump of a device; -1 means the leading device.
func OpenDump(a *App, word string, device int) (*snapshot.Dump, error) {
	f, err := Open(a, word)
	if err != nil {
		return nil, err
	}
	return DumpOf(f, word, device)
}

// DumpOf returns the dump of one device in a file.
func DumpOf(f *files.File, word string, device int) (*snapshot.Dump, error) {
	devices, err := DevicesOf(f, word)
	if err != nil {
		return nil, err
	}
	if device < 0 {
		return devices[Leading(devices)], nil
	}
	for _, r := range devices {
		if r.Snapshot.Ordinal == device {
			return r, nil
		}
	}
	return nil, UsageError("--device %d: %s has no such device", device, word)
}

// DevicesOf returns the dumps of all devices in a file.
func DevicesOf(f *files.File, word string) ([]*snapshot.Dump, error) {
	if f.Dump == nil {
		return nil, fmt.Errorf("%s is a %s: %w", word, f.Format, ErrNoDump)
	}
	return append([]*snapshot.Dump{f.Dump}, f.Dump.Others...), nil
}

// Leading returns the index of the device that a file is about: the one whose request failed, or
// else the first, which has most memory.
func Leading(devices []*snapshot.Dump) int {
	return max(0, slices.IndexFunc(devices, func(d *snapshot.Dump) bool { return d.OOM != nil }))
}

// Package smalldisk gives tests a disk that is soon full.
package smalldisk

import (
	"os"
	"path/filepath"
	"testing"
)

// Dir returns a new folder on a file system of that many bytes. It skips the test where none can be
// mounted: that takes root on Linux.
func Dir(t testing.TB, size int) string {
	t.Helper()
	dir := t.TempDir()
	unmount, err := mount(dir, size)
	if err != nil {
		t.Skip("no small disk can be mounted here: ", err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// Fill takes what is left of the disk that a folder of Dir is on.
func Fill(t testing.TB, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "fill"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
}

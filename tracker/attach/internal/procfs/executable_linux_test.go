package procfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestExecutable: what the kernel knows of this program gives the mappings that it has.
func TestExecutable(t *testing.T) {
	file, err := os.Executable()
	require.NoError(t, err)
	info, err := os.Stat(file)
	require.NoError(t, err)
	stat, err := os.ReadFile("/proc/self/stat")
	require.NoError(t, err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const endCode = 27 - 3
	x := Executable{Path: file, Inode: Inode(info), Parent: os.Getpid()}
	fmt.Sscan(fields[endCode], &x.CodeEnd)
	require.NotZero(t, x.CodeEnd, "a process sees its own addresses")
	mapped, err := ReadMaps(os.Getpid())
	require.NoError(t, err)
	var want [][4]uint64
	for _, m := range mapped {
		if m.Path == file {
			want = append(want, [4]uint64{m.Start, m.End, m.Offset, m.Inode})
		}
	}
	const nobody = 1 << 30
	t.Chdir(filepath.Dir(file))
	for _, path := range []string{file, filepath.Base(file), "./" + filepath.Base(file)} {
		x.Path = path
		program, all := x.Mappings(nobody)
		assert.Equal(t, filepath.Base(file), program)
		var got [][4]uint64
		for _, m := range all {
			got = append(got, [4]uint64{m.Start, m.End, m.Offset, m.Inode})
			assert.Equal(t, file, m.Path)
		}
		assert.Equal(t, want, got, path)
	}
	x.Inode++
	program, all := x.Mappings(nobody)
	assert.Empty(t, program)
	assert.Empty(t, all, "another file has its path by now")
	for _, path := range []string{"", "no such file", "/proc/self/stat", "."} {
		x.Path = path
		_, all = x.Mappings(nobody)
		assert.Empty(t, all, path)
	}
}

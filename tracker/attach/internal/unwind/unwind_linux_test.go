package unwind

import (
	"bufio"
	"debug/elf"
	"encoding/hex"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// run builds testdata/stacks.c, and returns what it prints and the files that it had loaded.
func run(t testing.TB, flags ...string) (stacks []taken, find Finder) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the program reads the registers of amd64")
	}
	path := filepath.Join(t.TempDir(), "stacks")
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	out, err := exec.Command(gcc, append(flags, "-g", "-o", path, "testdata/stacks.c", "-lpthread")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	printed, err := exec.Command(path).Output()
	require.NoError(t, err)
	lines := bufio.NewScanner(strings.NewReader(string(printed)))
	lines.Buffer(nil, 1<<20)
	var maps []mapping
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch fields[0] {
		case "stack":
			c := taken{Thread: Thread{Machine: AMD64}}
			for i, register := range []int{16, 7, 6, 3, 12, 13, 14, 15} {
				c.Registers[register] = number(t, fields[1+i])
			}
			c.Stack, err = hex.DecodeString(fields[9])
			require.NoError(t, err)
			stacks = append(stacks, c)
		case "caller":
			last := &stacks[len(stacks)-1]
			last.callers = append(last.callers, number(t, fields[1]))
		case "map":
			maps = append(maps, newMapping(t, fields))
		}
	}
	return stacks, finder(maps)
}

// mapping is code of a file in the program's memory.
type mapping struct {
	from, to, bias uint64
	table          *Table
}

func newMapping(t testing.TB, fields []string) mapping {
	t.Helper()
	m := mapping{from: number(t, fields[1]), to: number(t, fields[2])}
	offset := number(t, fields[3])
	file, err := elf.Open(fields[4])
	require.NoError(t, err)
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && p.Off <= offset && offset < p.Off+p.Filesz {
			m.bias = m.from - offset - (p.Vaddr - p.Off)
		}
	}
	m.table, err = Read(file)
	require.NoError(t, err)
	return m
}

func finder(maps []mapping) Finder {
	return func(pc uint64) (*Table, uint64, bool) {
		for _, m := range maps {
			if m.from <= pc && pc < m.to {
				return m.table, pc - m.bias, true
			}
		}
		return nil, 0, false
	}
}

// TestWalkAgreesWithTheCLibrary: functions of many kinds, in the program and in the C library, in a signal
// handler and in a thread.
func TestWalkAgreesWithTheCLibrary(t *testing.T) {
	for _, flags := range [][]string{{"-O2", "-fomit-frame-pointer"}, {"-O0"}, {"-Os", "-fomit-frame-pointer", "-mavx"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			stacks, find := run(t, flags...)
			require.Len(t, stacks, 9)
			for _, s := range stacks {
				frames, end := s.Walk(nil, 64, find, nil)
				assert.Equal(t, s.callers, frames[1:])
				assert.Equal(t, Outermost, end)

				frames, end = s.Walk(nil, 2, find, nil)
				assert.Len(t, frames, 2)
				assert.Equal(t, TooManyFrames, end)
				s.Stack = s.Stack[:min(len(s.Stack), 64)]
				frames, end = s.Walk(nil, 64, find, nil)
				assert.Less(t, len(frames), 5)
				assert.Equal(t, BeyondCopy, end)
			}
		})
	}
}

// TestWithoutTheLinkersIndex: reading all entries finds what the index has.
func TestWithoutTheLinkersIndex(t *testing.T) {
	path, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc, whose own tables are read")
	}
	file, err := elf.Open(path)
	require.NoError(t, err)
	defer file.Close()
	table, err := Read(file)
	require.NoError(t, err)
	require.NotEmpty(t, table.index)
	assert.Equal(t, table.index, table.scan())
}

package unwind

import (
	"debug/elf"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "take the stacks of ARM anew: it needs Debian's gcc-aarch64-linux-gnu and qemu-user")

// taken is a stack that a program printed, and its callers by another way than tables.
type taken struct {
	Thread
	callers []uint64
}

func number(t testing.TB, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 16, 64)
	require.NoError(t, err)
	return n
}

// arms are the ways that testdata/arm64.c is compiled in. Debian, Fedora and Ubuntu sign return addresses, as "standard" does.
var arms = map[string]string{
	"plain":        "-O2 -fomit-frame-pointer",
	"signed":       "-O2 -fomit-frame-pointer -mbranch-protection=standard",
	"framed":       "-O2 -fno-omit-frame-pointer -mbranch-protection=standard",
	"signed-other": "-Os -fomit-frame-pointer -mbranch-protection=pac-ret+leaf+b-key -fstack-clash-protection",
}

// take runs the program on an emulated processor that signs, and stores what it prints, after its table and where its code lies.
func take(t *testing.T, file, flags string) {
	path := filepath.Join(t.TempDir(), "arm64")
	args := append(strings.Fields(flags), "-Wall", "-ffreestanding", "-nostdlib", "-static", "-fasynchronous-unwind-tables", "-o", path, "testdata/arm64.c")
	text, err := exec.Command("aarch64-linux-gnu-gcc", args...).CombinedOutput()
	require.NoError(t, err, "%s", text)
	printed, err := exec.Command("qemu-aarch64", "-cpu", "max", path).Output()
	require.NoError(t, err)
	program, err := elf.Open(path)
	require.NoError(t, err)
	defer program.Close()
	code, frames := program.Section(".text"), program.Section(".eh_frame")
	data, err := frames.Data()
	require.NoError(t, err)
	head := fmt.Sprintf("# arm64.c, %s\ncode %x %x\ntable %x %x\n", flags, code.Addr, code.Addr+code.Size, frames.Addr, data)
	require.NoError(t, os.WriteFile(file, append([]byte(head), printed...), 0o644))
}

// stored reads what take wrote.
func stored(t *testing.T, file string) (stacks []taken, table *Table, code [2]uint64) {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		last := fields[len(fields)-1]
		switch fields[0] {
		case "code":
			code = [2]uint64{number(t, fields[1]), number(t, last)}
		case "table":
			table = &Table{address: number(t, fields[1]), cies: make(map[int]*cie), rules: make(map[uint64]*rule)}
			table.frames, err = hex.DecodeString(last)
			table.index = table.scan()
		case "stack":
			its := taken{Thread: Thread{Machine: ARM64, Registers: ARM64.Registers(number(t, fields[1]), number(t, fields[2]), number(t, fields[3]))}}
			its.Stack, err = hex.DecodeString(last)
			stacks = append(stacks, its)
		case "caller":
			its := &stacks[len(stacks)-1]
			its.callers = append(its.callers, number(t, last))
		}
		require.NoError(t, err)
	}
	return stacks, table, code
}

// applyRules does what a probe does with its unwind rules.
func (c *Thread) applyRules(steps map[uint64]CompactRule) (frames []uint64) {
	word := func(at uint64) uint64 {
		v, _ := c.read(at)
		return v
	}
	pc, sp, fp := c.Registers[c.ra], c.Registers[c.sp], c.Registers[c.frame.cfa.register]
	for s, ok := steps[pc]; ok; s, ok = steps[pc] {
		frames = append(frames, pc)
		begin := fp + uint64(s.CFAOffset)
		switch s.Base {
		case NoBase:
			return frames
		case FromSP:
			begin = sp + uint64(s.CFAOffset)
		case DerefFP:
			begin = word(begin)
		}
		switch s.FPBase {
		case FromSP:
			fp = word(begin + uint64(s.FPOffset))
		case FromFP:
			fp = word(fp + uint64(s.FPOffset))
		}
		pc, sp = word(begin+uint64(s.ReturnOffset))&c.Address(), begin
	}
	return append(frames, pc)
}

// TestStoredStacksOfARM64: functions of many kinds, of which each noted where it returns to, most with signed return addresses. The
// callers are found by the tables, by the compact rules of a probe, and by frame pointers where all functions have them.
func TestStoredStacksOfARM64(t *testing.T) {
	for name, flags := range arms {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", "arm64-"+name+".txt")
			if *update {
				take(t, file, flags)
			}
			stacks, table, code := stored(t, file)
			require.Len(t, stacks, 7)
			find := func(pc uint64) (*Table, uint64, bool) { return table, pc, code[0] <= pc && pc < code[1] }
			bare := func(pc uint64) (*Table, uint64, bool) { return nil, pc, code[0] <= pc && pc < code[1] }
			for _, s := range stacks {
				steps := make(map[uint64]CompactRule)
				frames, end := s.Walk(nil, 64, find, func(pc uint64, s CompactRule) { steps[pc] = s })
				assert.Equal(t, s.callers, frames[1:])
				assert.Equal(t, Outermost, end)
				assert.Equal(t, frames, s.applyRules(steps))
				if name == "framed" {
					frames, _ = s.Walk(nil, 64, bare, nil)
					assert.Equal(t, s.callers, frames[1:])
				}
				s.Stack = s.Stack[:16]
				frames, end = s.Walk(nil, 64, find, nil)
				assert.Less(t, len(frames), 4)
				assert.Equal(t, BeyondCopy, end)
			}
		})
	}
}

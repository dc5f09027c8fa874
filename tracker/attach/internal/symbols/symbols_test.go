package symbols

import (
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func TestPerfMap(t *testing.T) {
	p := perfMap{names: parsePerfMap(`7f00 b py::load_weights:/home/me/train.py
7f20 10 py::<module>:/home/me/train.py
torn
9000 20 Builtin:Call
`)}
	for address, want := range map[uint64]mem.Frame{
		0x7f00: {Function: "load_weights", File: "/home/me/train.py"},
		0x7f0a: {Function: "load_weights", File: "/home/me/train.py"},
		0x7f0b: {},
		0x7f21: {Function: "<module>", File: "/home/me/train.py"},
		0x9001: {Function: "Builtin:Call"},
		0x10:   {},
	} {
		f, ok := p.frame(address)
		assert.Equal(t, want != mem.Frame{}, ok, "%#x", address)
		assert.Equal(t, want, f)
	}
}

func TestStacksWithoutEnd(t *testing.T) {
	maps := procfs.Maps{All: []procfs.Mapping{{Start: 0x1000, End: 0x2000, Device: "fe:00", Inode: 1, Path: "/lib/libffi.so.8"}, {Start: 0x3000, End: 0x4000, Device: "fe:00", Inode: 2, Path: "/lib/libc.so.6"}}}
	s := New(1<<30, 64, maps, func() []procfs.Mapping { return nil }, func() {})
	assert.Equal(t, mem.Stack{
		{Function: "libffi.so.8+0xf", File: "/lib/libffi.so.8"},
		{Function: "(the stack ends early: libffi.so.8 keeps no frame pointers, and has no table of its callers)"},
	}, s.Resolve(Trace{[]uint64{0x1010, 0x7ffe00}, 2, NoTable}, nil))
	assert.Equal(t, mem.Stack{{Function: "libc.so.6+0xf", File: "/lib/libc.so.6"}}, s.Resolve(Trace{[]uint64{0x3010}, 1, NoTable}, nil))
}

func TestFunctionsThatKeepAFramePointer(t *testing.T) {
	for name, test := range map[string]struct {
		machine elf.Machine
		code    string
		want    bool
	}{
		"amd64, gcc":                {elf.EM_X86_64, "554889e54883ec10", true},
		"amd64, endbr64":            {elf.EM_X86_64, "f30f1efa554889e55dc3", true},
		"amd64, moves between":      {elf.EM_X86_64, "554889f889f74889e5ffd0", true},
		"amd64, the other encoding": {elf.EM_X86_64, "55488bec", true},
		"amd64, rbp is saved":       {elf.EM_X86_64, "554889fd53", false},
		"amd64, none":               {elf.EM_X86_64, "4883ec08ffd7", false},
		"arm64":                     {elf.EM_AARCH64, "fd7bbea9fd030091", true},                 // stp x29, x30, [sp, #-32]!; mov x29, sp
		"arm64, signed, large":      {elf.EM_AARCH64, "3f2303d5ff8301d1fd7b04a9fd030191", true}, // paciasp; sub sp, sp, #96; stp x29, x30, [sp, #64]; add x29, sp, #64
		"arm64, both are saved":     {elf.EM_AARCH64, "fd7bbea9f30b00f900003fd6", false},
		"arm64, x30 alone":          {elf.EM_AARCH64, "fe0f1ff800003fd6", false},
		"cut":                       {elf.EM_X86_64, "5548", false},
		"another machine":           {elf.EM_RISCV, "554889e5", false},
	} {
		code, err := hex.DecodeString(test.code)
		require.NoError(t, err)
		assert.Equal(t, test.want, setsFramePointer(test.machine, code), name)
	}
}

// TestStartsAreLeftOut: what the C library does before main is of no use. One of its functions that calls back is no start.
func TestStartsAreLeftOut(t *testing.T) {
	libc := func(name string) mem.Frame { return mem.Frame{Function: name, File: "/lib/x86_64-linux-gnu/libc.so.6"} }
	main, compare := mem.Frame{Function: "main", File: "/home/me/train"}, mem.Frame{Function: "compare", File: "/home/me/train"}
	s := &Symbolizer{most: 64}
	for name, test := range map[string]struct {
		all  mem.Stack
		want mem.Stack
	}{
		"named":           {mem.Stack{main, libc("__libc_start_call_main"), libc("__libc_start_main"), {Function: "_start", File: "/home/me/train"}}, mem.Stack{main}},
		"stripped":        {mem.Stack{main, libc("libc.so.6+0x27249"), libc("__libc_start_main"), {Function: "train+0x5"}}, mem.Stack{main}},
		"a thread":        {mem.Stack{compare, libc("start_thread"), libc("clone3")}, mem.Stack{compare}},
		"at exit":         {mem.Stack{compare, libc("libc.so.6+0x3e494"), libc("exit"), libc("libc.so.6+0x27249")}, mem.Stack{compare, libc("libc.so.6+0x3e494"), libc("exit")}},
		"within":          {mem.Stack{compare, libc("libc.so.6+0x3d000"), libc("qsort_r"), main}, mem.Stack{compare, libc("libc.so.6+0x3d000"), libc("qsort_r"), main}},
		"nothing but one": {mem.Stack{libc("libc.so.6+0x3d000")}, mem.Stack{libc("libc.so.6+0x3d000")}},
	} {
		var all []code
		for _, f := range test.all {
			all = append(all, code{frames: mem.Stack{f}, native: f, certain: true})
		}
		assert.Equal(t, test.want, s.frameList(all, Complete), name)
	}
}

// TestStacksThatAreCut: one with the maximum number of addresses says so, and keeps all of them.
func TestStacksThatAreCut(t *testing.T) {
	f, nameless := mem.Frame{Function: "recurse", File: "/home/me/train"}, mem.Frame{Function: "0x7f00"}
	s := &Symbolizer{most: 2}
	assert.Equal(t, mem.Stack{f, nameless, {Function: "(more than 2 frames: the others are left out)"}},
		s.frameList([]code{{frames: mem.Stack{f}, native: f, certain: true}, {frames: mem.Stack{nameless}, native: nameless, certain: true}}, TooMany))
}

// TestReasonsForCodeOfUnknownFiles: a stack whose mappings were not read in time says so. It says nothing of frame pointers and tables, as
// nobody knows whether the code has these.
func TestReasonsForCodeOfUnknownFiles(t *testing.T) {
	const tail = ": the process ended, or unloaded code, before it was read which file has the code "
	f := mem.Frame{Function: "train", File: "/home/me/train"}
	known, unknown := code{frames: mem.Stack{f}, native: f, certain: true}, func(name string) code {
		f := mem.Frame{Function: name}
		return code{frames: mem.Stack{f}, native: f, unread: true}
	}
	for name, test := range map[string]struct {
		all  []code
		end  string
		late bool
		want []string
	}{
		"alone":        {[]code{unknown("0x1")}, NoTable, true, []string{"0x1", "(the stack ends early" + tail + "at 0x1)"}},
		"its caller":   {[]code{known, unknown("0x1")}, NoTable, true, []string{"train", "(the stack ends early" + tail + "that called train)"}},
		"not walked":   {[]code{known}, NoTable, true, []string{"train", "(the stack ends early" + tail + "that called train)"}},
		"between":      {[]code{unknown("0x1"), known}, Complete, true, []string{"0x1", "(callers may be missing here" + tail + "at 0x1)", "train"}},
		"read in time": {[]code{known}, NoTable, false, []string{"train", "(the stack ends early: what called train is code without a name)"}},
	} {
		var got []string
		s := &Symbolizer{most: 64, stale: test.late}
		for _, f := range s.frameList(test.all, test.end) {
			got = append(got, f.Function)
		}
		assert.Equal(t, test.want, got, name)
	}
}

// TestNotesAreNotRepeated: of several frames without a name, such as those of a JVM, one note says that callers may be missing.
func TestNotesAreNotRepeated(t *testing.T) {
	const tail = " has no table of them, and may keep no frame pointers)"
	s := &Symbolizer{most: 64}
	at := func(name, file string, certain bool) code {
		f := mem.Frame{Function: name, File: file}
		return code{frames: mem.Stack{f}, native: f, certain: certain}
	}
	alloc, call, main := at("alloc", "/lib/libjni.so", true), at("call_helper", "/lib/libjvm.so", true), at("main", "/bin/java", true)
	jit := func(name string) code { return at(name, "", false) }
	other := func(name string) code { return at(name, "/lib/libfast.so", false) }
	for name, test := range map[string]struct {
		all  []code
		want []string
	}{
		"one":        {[]code{alloc, jit("0x1"), call, main}, []string{"alloc", "0x1", "(callers may be missing here: 0x1" + tail, "call_helper", "main"}},
		"three":      {[]code{alloc, jit("0x1"), jit("0x2"), jit("0x3"), call, main}, []string{"alloc", "0x1", "0x2", "0x3", "(callers may be missing here and between the nameless frames before this: 0x3" + tail, "call_helper", "main"}},
		"two and 1":  {[]code{jit("0x1"), jit("0x2"), call, jit("0x3"), main}, []string{"0x1", "0x2", "(callers may be missing here and between the nameless frames before this: 0x2" + tail, "call_helper", "0x3", "(callers may be missing here: 0x3" + tail, "main"}},
		"of a file":  {[]code{other("libfast.so+0x1"), other("libfast.so+0x2"), main}, []string{"libfast.so+0x1", "libfast.so+0x2", "(callers may be missing here and between the nameless frames before this: libfast.so" + tail, "main"}},
		"two files":  {[]code{jit("0x1"), other("libfast.so+0x2"), main}, []string{"0x1", "(callers may be missing here: 0x1" + tail, "libfast.so+0x2", "(callers may be missing here: libfast.so" + tail, "main"}},
		"with names": {[]code{other("f"), other("g"), main}, []string{"f", "(callers may be missing here: libfast.so" + tail, "g", "(callers may be missing here: libfast.so" + tail, "main"}},
		"certain":    {[]code{jit("0x1"), at("0x2", "", true), main}, []string{"0x1", "(callers may be missing here: 0x1" + tail, "0x2", "main"}},
	} {
		var got []string
		for _, f := range s.frameList(test.all, Complete) {
			got = append(got, f.Function)
		}
		assert.Equal(t, test.want, got, name)
	}
}

// TestCallersFoundByAFramePointer: the caller of the first frame that a frame pointer led to may be another, and of those before it none,
// since each had a rule.
func TestCallersFoundByAFramePointer(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var libc procfs.Mapping
	require.Eventually(t, func() bool {
		all, err := procfs.ReadMaps(cmd.Process.Pid)
		require.NoError(t, err)
		i := slices.IndexFunc(all, func(m procfs.Mapping) bool { return strings.HasPrefix(filepath.Base(m.Path), "libc.so") })
		if i >= 0 {
			libc = all[i]
		}
		return i >= 0
	}, time.Minute, time.Millisecond)
	functions, err := Offsets(libc.Path, nil)
	require.NoError(t, err)
	s := New(cmd.Process.Pid, 64, procfs.Maps{All: []procfs.Mapping{libc}}, func() []procfs.Mapping { return nil }, func() {})
	var names []string
	var addresses []uint64
	for _, name := range []string{"qsort_r", "getenv", "strtol", "bsearch", "setlocale", "mktime"} {
		at := libc.Start + functions[name] - libc.Offset + 1
		if functions[name] != 0 && s.hasRule(at-1) && !s.keepsFramePointer(at-1) && len(names) < 4 {
			names, addresses = append(names, s.lookUp(at - 1).frames[0].Function), append(addresses, at)
		}
	}
	if len(names) < 4 {
		t.Skip("this C library keeps frame pointers")
	}
	for first := 1; first < len(addresses); first++ {
		var got, want []string
		for _, f := range s.Resolve(Trace{addresses, first, Complete}, nil) {
			got = append(got, f.Function)
		}
		for i, name := range names {
			if want = append(want, name); i >= first && i < len(names)-1 {
				want = append(want, fmt.Sprintf(gap, filepath.Base(libc.Path)))
			}
		}
		assert.Equal(t, want, got[:min(len(want), len(got))], first)
	}
}

// TestLinesOfSections: with -O2, main has a section of its own, which stands before the others.
func TestLinesOfSections(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("there is no gcc")
	}
	source := filepath.Join(t.TempDir(), "two.c")
	require.NoError(t, os.WriteFile(source, []byte(`int other(int n) {
	return n * n;
}
int main(int argc, char **argv) {
	return other(argc);
}
`), 0o600))
	program := source + ".elf"
	out, err := exec.Command("gcc", "-g", "-O2", "-o", program, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	f, err := elf.Open(program)
	require.NoError(t, err)
	defer f.Close()
	l := openLines(f)
	require.NotNil(t, l)
	found := 0
	for _, s := range functionSymbols(f) {
		if begin, ok := map[string]int{"other": 1, "main": 4}[s.name]; ok {
			stack := l.expand(s.start, mem.Frame{Function: s.name})
			last := stack[len(stack)-1]
			assert.Equal(t, source, last.File, s.name)
			assert.Contains(t, []int{begin, begin + 1}, last.Line, s.name)
			found++
		}
	}
	assert.Equal(t, 2, found)
}

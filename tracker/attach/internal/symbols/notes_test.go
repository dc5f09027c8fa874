package symbols

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNoteArgument(t *testing.T) {
	for text, want := range map[string]NoteArgument{
		"8@%rdi":       {Bytes: 8, Register: "rdi"},
		"-1@%al":       {Bytes: 1, Signed: true, Register: "al"},
		"-4@16(%rsp)":  {Bytes: 4, Signed: true, Register: "rsp", Memory: true, Offset: 16},
		"-8@-56(%rbp)": {Bytes: 8, Signed: true, Register: "rbp", Memory: true, Offset: -56},
		"8@(%rax)":     {Bytes: 8, Register: "rax", Memory: true},
		"-4@$-3":       {Bytes: 4, Signed: true, Offset: -3},
	} {
		got, err := readNoteArgument(text)
		assert.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "8@", "3@%rdi", "8@(%rax,%rbx,8)", "8@here(%rip)", "8@$12345678901", "%rdi"} {
		_, err := readNoteArgument(text)
		assert.Error(t, err, text)
	}
}

// TestNotes reads the stand-in of PyTorch's library.
func TestNotes(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the notes are those of amd64")
	}
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("there is no g++")
	}
	library := filepath.Join(t.TempDir(), "libc10_cuda.so")
	text, err := exec.Command("g++", "-O2", "-shared", "-fPIC", "-DPROBES", "-o", library, "../../testdata/torchcuda.cc").CombinedOutput()
	require.NoError(t, err, "%s", text)
	all, err := Notes(library)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Len(t, all["pytorch:malloc"], 2)
	require.Len(t, all["pytorch:free"], 1)
	one, other := all["pytorch:malloc"][0], all["pytorch:malloc"][1]
	assert.NotEqual(t, one.Offset, other.Offset)
	assert.NotZero(t, one.Semaphore)
	assert.Equal(t, one.Semaphore, other.Semaphore)
	assert.Len(t, one.Arguments, 4)
	assert.True(t, one.Arguments[1].Signed)
	assert.Equal(t, 1, one.Arguments[1].Bytes)
	file, err := os.ReadFile(library)
	require.NoError(t, err)
	const nop = 0x90
	assert.EqualValues(t, nop, file[one.Offset])
	assert.Zero(t, file[one.Semaphore])

	all, err = Notes("/proc/self/exe")
	assert.NoError(t, err)
	assert.Empty(t, all)
	_, err = Notes("notes_test.go")
	assert.Error(t, err)
}

// TestOffsetOfAFunctionInTwoParts: compilers put what is unlikely elsewhere, under a name that reads the same in C++.
func TestOffsetOfAFunctionInTwoParts(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("there is no gcc")
	}
	dir := t.TempDir()
	source, library := filepath.Join(dir, "parts.s"), filepath.Join(dir, "libparts.so")
	require.NoError(t, os.WriteFile(source, []byte(`
	.text
	.type _ZN1a1fEv, %function
	.type _ZN1a1fEv.cold, %function
_ZN1a1fEv: .4byte 0
	.size _ZN1a1fEv, 4
_ZN1a1fEv.cold: .4byte 0
	.size _ZN1a1fEv.cold, 4
`), 0o600))
	text, err := exec.Command("gcc", "-shared", "-nostdlib", "-o", library, source).CombinedOutput()
	require.NoError(t, err, "%s", text)
	at, err := Offsets(library, []string{"a::f"})
	require.NoError(t, err)
	mangled, err := Offsets(library, []string{"_ZN1a1fEv"})
	require.NoError(t, err)
	assert.NotZero(t, at["a::f"])
	assert.Equal(t, mangled["_ZN1a1fEv"], at["a::f"])
}

func FuzzNotes(f *testing.F) {
	f.Add([]byte("\x08\x00\x00\x00\x1d\x00\x00\x00\x03\x00\x00\x00stapsdt\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00a\x00b\x008"))
	self, err := elf.Open("/proc/self/exe")
	if err != nil {
		f.Skip(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for len(data) > 0 {
			description, rest, ok := cutNote(self, data)
			if !ok {
				return
			}
			require.Less(t, len(rest), len(data))
			data = rest
			readNote(self, 0, description)
		}
	})
}

//go:build amd64 || arm64

package probes

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// TestObjectsAreThoseOfTheSource makes the objects and their declarations again, as go generate does, and compares them byte by byte.
func TestObjectsAreThoseOfTheSource(t *testing.T) {
	for _, tool := range []string{"clang-14", "llvm-strip-14"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("the objects are made by ", tool, ", which is not here")
		}
	}
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		t.Skip("the headers of libbpf are not here: Debian has them in libbpf-dev")
	}
	text, err := os.ReadFile("probes.go")
	require.NoError(t, err)
	_, command, _ := strings.Cut(string(text), "//go:generate go ")
	command, _, _ = strings.Cut(command, "\n")
	var args []string
	for _, m := range regexp.MustCompile(`"([^"]*)"|(\S+)`).FindAllStringSubmatch(command, -1) {
		args = append(args, m[1]+m[2])
	}
	source := len(args) - 2 // before it stands the stem of all names
	dir := t.TempDir()
	args = append(args[:source:source], append([]string{"-output-dir", dir}, args[source:]...)...)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOPACKAGE=probes")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	made, err := filepath.Glob(filepath.Join(dir, "programs_*"))
	require.NoError(t, err)
	require.Len(t, made, 4, "an object and its declarations for each of two machines")
	for _, path := range made {
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		is, err := os.ReadFile(filepath.Base(path))
		require.NoError(t, err)
		assert.True(t, string(want) == string(is), "%s is not what its source makes: run go generate", filepath.Base(path))
	}
}

// TestRecords: the layout of what the programs write is that of package event and of package python.
func TestRecords(t *testing.T) {
	var e programsEvent
	var part programsStackPart
	var c programsCodeCopy
	for name, at := range map[string]struct{ is, want uintptr }{
		"time":                 {unsafe.Offsetof(e.Head.Time), event.OffTime},
		"thread":               {unsafe.Offsetof(e.Head.Tid), event.OffThread},
		"process":              {unsafe.Offsetof(e.Head.Pid), event.OffThread + 4},
		"function":             {unsafe.Offsetof(e.Head.Function), event.OffWhat},
		"phase":                {unsafe.Offsetof(e.Head.Phase), event.OffWhat + 4},
		"result":               {unsafe.Offsetof(e.Result), event.OffResult},
		"out":                  {unsafe.Offsetof(e.Out), event.OffOut},
		"pitch":                {unsafe.Offsetof(e.Pitch), event.OffPitch},
		"arguments":            {unsafe.Offsetof(e.Args), event.OffArgs},
		"descriptor":           {unsafe.Offsetof(e.Desc), event.OffDesc},
		"depth":                {unsafe.Offsetof(e.Depth), event.OffDepth + event.InDepth},
		"end":                  {unsafe.Offsetof(e.End), event.OffDepth + event.InEnd},
		"total":                {unsafe.Offsetof(e.Total), event.OffDepth + event.InTotal},
		"total's end":          {unsafe.Offsetof(e.TotalEnd), event.OffDepth + event.InTotalEnd},
		"generation":           {unsafe.Offsetof(e.Generation), event.OffDepth + 4},
		"python":               {unsafe.Offsetof(e.Python), event.OffPython},
		"frames":               {unsafe.Offsetof(e.Frames), event.OffFrames},
		"size":                 {unsafe.Offsetof(e.OneMore), event.MostSize},
		"stack":                {unsafe.Offsetof(part.Start), event.OffUnknown},
		"part of a stack":      {unsafe.Offsetof(part.Bytes), event.OffPart},
		"size of a part":       {unsafe.Sizeof(part), event.PartSize},
		"code":                 {unsafe.Offsetof(c.Code), python.CopyCode},
		"version":              {unsafe.Offsetof(c.Version), python.CopyVersion},
		"code's address":       {unsafe.Offsetof(c.CodeAddress), python.CopyCodeAddress},
		"parts":                {unsafe.Offsetof(c.Parts), python.CopyParts},
		"object":               {unsafe.Offsetof(c.Object), uintptr(python.Object.At())},
		"name of the file":     {unsafe.Offsetof(c.File), uintptr(python.File.At())},
		"name of the function": {unsafe.Offsetof(c.Name), uintptr(python.Name.At())},
		"offsets":              {unsafe.Offsetof(c.Runtime), uintptr(python.Runtime.At())},
		"lines":                {unsafe.Offsetof(c.Lines), uintptr(python.Lines.At())},
		"lines' size":          {unsafe.Sizeof(c.Lines), uintptr(python.MostOf[python.Lines])},
	} {
		assert.Equal(t, at.want, at.is, name)
	}
}

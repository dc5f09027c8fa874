// Package hostile_test runs the command on files that want its memory: each ends with an answer or an error, within
// a limit of memory, and never with a stack of Go's runtime.
package hostile_test

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// program is where gpumemtrack lies.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gpumemtrack-hostile")
	if err != nil {
		log.Fatal(err)
	}
	program = filepath.Join(dir, "gpumemtrack")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "./cmd/gpumemtrack") // without -race, which takes memory of its own
	build.Dir = filepath.Join("..", "..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		log.Fatalf("build gpumemtrack: %v\n%s", err, out)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// addressSpace is what a run may take, in KiB: the runtime of Go reserves half of it without using it, and on a busy machine its
// garbage collector comes late.
const addressSpace = 3 << 20

// TestHostileFilesEndWithAnError runs commands on each file under a limit of memory.
func TestHostileFilesEndWithAnError(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the limit is set by ulimit -v of Linux")
	}
	every := [][]string{{"show"}, {"explain"}, {"replay"}, {"convert", "-f", "-o", "out.html"}}
	for _, kind := range []struct {
		name     string
		files    []file
		commands [][]string
	}{
		{"pickle", pickles, every},
		{"gzip", gzips, every[:1]},
		{"profile", profiles, every[:1]},
		{"JSON", jsons, every[:1]},
		{"safetensors", safetensors, [][]string{{"estimate"}}},
		{"GGUF", ggufs, [][]string{{"estimate"}}},
		{"config", configs, [][]string{{"estimate"}}},
		{"log", logs, every[:2]},
		{"error text", errorTexts, [][]string{{"explain"}, {"show"}}},
		{"unknown", unknowns, [][]string{{"explain"}, {"show"}, {"chart", "-f", "-o", "out.svg"}, {"estimate"}}},
		{"history", histories, every},
		{"recording", recordings, [][]string{{"chart", "-f", "-o", "out.svg"}}},
	} {
		for _, f := range kind.files {
			t.Run(kind.name+"/"+f.name, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, f.name)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, os.WriteFile(path, f.make(), 0o600))
				for _, command := range kind.commands {
					run(t, dir, append(command, path)...)
				}
			})
		}
	}
}

func run(t *testing.T, dir string, args ...string) {
	cmd := exec.Command("sh", append([]string{"-c", fmt.Sprintf(`ulimit -v %d && exec "$0" "$@"`, addressSpace), program}, args...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	text := stderr.String()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		const unfit = 3 // the answer of a replay
		if failed.ExitCode() != unfit {
			assert.Equal(t, 1, failed.ExitCode(), "%s: %.2000s", args, text)
			assert.True(t, strings.HasPrefix(text, "gpumemtrack: "), "%s: %.2000s", args, text)
		}
		assert.Less(t, len(text), 10_000, "%s", args)
	} else {
		require.NoError(t, err)
	}
	assert.NotContains(t, text, "goroutine ", "%s", args)
}

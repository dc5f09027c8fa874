package readme_test

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReplayCommands runs the README's commands of replays, on the history that an example
// makes, and compares what they print, but for times.
func TestReplayCommands(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command here")
	}
	lookAtAllFiles(t)
	dir := t.TempDir()
	for _, name := range []string{"cmd/gpumemtrack", "examples/replay"} {
		out, err := exec.Command("go", "build", "-o", filepath.Join(dir, filepath.Base(name)), "../../"+name).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	var block string
	for _, b := range blocks(readme(t), "console") {
		if strings.HasPrefix(b, "$ go run ./examples/replay") {
			block = b
		}
	}
	require.NotEmpty(t, block)
	times := regexp.MustCompile(`\b[0-9.]+(ns|µs|ms|s|m)\b`)
	status := 0
	for _, part := range strings.Split("\n"+block, "\n$ ")[1:] {
		command, want, _ := strings.Cut(part, "\n")
		words := strings.Fields(strings.Replace(command, "go run ./examples/replay", "replay", 1))
		var got string
		if command == "echo $?" {
			got = fmt.Sprint(status)
		} else {
			cmd := exec.Command(filepath.Join(dir, words[0]), words[1:]...)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			status = 0
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				status = exit.ExitCode()
			} else {
				require.NoError(t, err)
			}
			got = strings.TrimSpace(string(out))
		}
		assert.Equal(t, times.ReplaceAllString(want, "TIME"), times.ReplaceAllString(got, "TIME"), command)
	}
}

package readme_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNotebook composes the cells of docs/notebook.md into programs as GoNB does, and runs
// them: functions named init_... become init, and %% becomes func main.
func TestNotebook(t *testing.T) {
	t.Parallel() // it waits for other programs
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command here")
	}
	lookAtAllFiles(t)
	all := pages(t)
	p := all[slices.IndexFunc(all, func(p page) bool { return filepath.Base(p.path) == "notebook.md" })]
	cells := p.blocks("go")
	require.Len(t, cells, 2)
	text := func(b block) string { return strings.Join(p.lines[b.first:b.last], "\n") }
	recipe := regexp.MustCompile(`func init_\w+`).ReplaceAllString(text(cells[0]), "func init")
	printed := func(main string) string {
		path := filepath.Join(t.TempDir(), "main.go")
		const ours = "github.com/gpumemtrack/gpumemtrack/"
		imports := fmt.Sprintf("import (\n\t%q\n\t%q\n)\n", ours+"alloc", ours+"tracker") // GoNB finds what is missing
		program := "package main\n\n" + imports + recipe + "\n\n" + main + "\n\nvar _, _ = alloc.MiB, tracker.Input\n"
		require.NoError(t, os.WriteFile(path, []byte(program), 0o600))
		cmd := exec.Command("go", "run", path)
		cmd.Env = append(os.Environ(), "GPUMEMTRACK_DEVICE=sim")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	table := p.blocks("text")
	require.Len(t, table, 1)
	measured := printed(strings.Replace(text(cells[1]), "%%", "func main() {", 1) + "}\n")
	assert.Equal(t, masked(text(table[0]), true), masked(measured, true))
	assert.Contains(t, measured, "GPU:      90.0    256.0        90.0 MiB")
	assert.Empty(t, printed("func main() {}"), "a cell that allocates nothing")
}

package tracker_test

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// dumpsForever writes dumps to its directory and says so after each.
func dumpsForever() {
	tr := must(tracker.New(tracker.Config{Device: must(sim.New(sim.Config{})), Report: io.Discard, MaxDumps: 2}))
	for range 2000 {
		must(tr.Alloc(alloc.Shape{3}, alloc.Float32, tracker.Activation))
	}
	for {
		must(tr.DumpFile(".", "again"))
		os.Stdout.WriteString(".\n")
	}
}

// temporary returns the files of a directory that have no name yet.
func temporary(t *testing.T, dir string) []string {
	found, err := filepath.Glob(filepath.Join(dir, ".gpumemtrack-*.tmp"))
	require.NoError(t, err)
	return found
}

// TestDumpsOfKilledProgramsAreDeleted, those that are being written are not: two
// programs write to one directory, one is killed again and again, and the other, which
// deletes what the first leaves, never loses a file of its own.
func TestDumpsOfKilledProgramsAreDeleted(t *testing.T) {
	stays := child(t, "dumps forever")
	dir := stays.Dir
	out, err := stays.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, stays.Start())
	said := bufio.NewScanner(out)

	left := 0
	for range 30 {
		cmd := child(t, "dumps forever")
		cmd.Dir = dir
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		require.True(t, bufio.NewScanner(out).Scan())
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
		left += len(temporary(t, dir))
		require.True(t, said.Scan(), "the other program goes on")
		assert.LessOrEqual(t, len(temporary(t, dir)), 3)
	}
	require.NoError(t, stays.Process.Kill())
	require.Error(t, stays.Wait())
	assert.Positive(t, left, "of the programs that were killed while they wrote")

	tr, _ := open(t, tracker.Config{MaxDumps: 2})
	path, err := tr.DumpFile(dir, "the last")
	require.NoError(t, err)
	assert.Empty(t, temporary(t, dir))
	all := files(t, dir)
	assert.Contains(t, all, path)
	of := make(map[string]int)
	for _, path := range all {
		of[strings.Split(filepath.Base(path), "-")[3]]++ // by the process's number
		readDump(t, path)
	}
	for process, dumps := range of {
		assert.LessOrEqual(t, dumps, 3, "the program %s may be killed before it deletes its oldest", process)
	}
}

// TestNewDeletesUnfinishedDumps that killed programs left in the folders that it is given.
func TestNewDeletesUnfinishedDumps(t *testing.T) {
	for name, look := range map[string]func(dir string){
		"of dumps":      func(dir string) { open(t, tracker.Config{OOMDir: dir}) },
		"of the report": func(dir string) { open(t, tracker.Config{Dir: dir}) },
		"of signals": func(dir string) {
			tr, _ := open(t, tracker.Config{})
			tr.DumpOnSignal(dir)()
		},
	} {
		dir := t.TempDir()
		recent, old := filepath.Join(dir, ".gpumemtrack-0badcafe-1.tmp"), filepath.Join(dir, ".gpumemtrack-0badcafe-2.tmp")
		for _, path := range []string{recent, old} {
			require.NoError(t, os.WriteFile(path, nil, 0o644))
		}
		before := time.Now().Add(-2 * time.Hour)
		require.NoError(t, os.Chtimes(old, before, before))
		look(dir)
		assert.Equal(t, []string{recent}, temporary(t, dir), name)
	}
}

// TestTemporaryFilesOfOthers: where no lock can tell, their age does.
func TestTemporaryFilesOfOthers(t *testing.T) {
	dir := t.TempDir()
	const recent, old, note = ".gpumemtrack-0badcafe-1.tmp", ".gpumemtrack-123.tmp", ".gpumemtrack-notes"
	for _, name := range []string{recent, old, note} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	for _, name := range []string{old, note} {
		before := time.Now().Add(-2 * time.Hour)
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), before, before))
	}
	tr, _ := open(t, tracker.Config{})
	path, err := tr.DumpFile(dir, "test")
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{path, filepath.Join(dir, recent), filepath.Join(dir, note)}, files(t, dir))
}

// TestDumpsBesideEachOther: none takes another's file for abandoned.
func TestDumpsBesideEachOther(t *testing.T) {
	dir := t.TempDir()
	var group sync.WaitGroup
	for range 8 {
		tr, _ := open(t, tracker.Config{MaxDumps: 1000})
		group.Go(func() {
			for range 20 {
				_, err := tr.DumpFile(dir, "test")
				assert.NoError(t, err)
			}
		})
	}
	group.Wait()
	all := files(t, dir)
	assert.Len(t, all, 8*20)
	for _, path := range all {
		assert.True(t, strings.HasSuffix(path, ".dump.json"))
	}
}

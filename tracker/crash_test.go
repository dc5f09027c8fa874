//go:build linux

package tracker_test

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// childEnv names the program that the test binary is to be instead of a test.
const childEnv = "TRACKER_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "tracks forever":
		tracksForever()
	case "fills the disk":
		fillsTheDisk()
	default:
		os.Exit(m.Run())
	}
}

// child returns this test binary as one of the programs, in a directory of its own.
func child(t *testing.T, program string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), childEnv+"="+program)
	cmd.Stderr = os.Stderr
	return cmd
}

func reportIn(t *testing.T, dir string) string {
	files, err := filepath.Glob(filepath.Join(dir, "*-gpu_mem_track.txt"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	return string(text)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// tracksForever says on its output, after each Track has returned, how many have.
func tracksForever() {
	tr := must(tracker.New(tracker.Config{Device: must(sim.New(sim.Config{}))}))
	for {
		must(tr.Alloc(alloc.Shape{3}, alloc.Float32, tracker.Activation))
		tr.Track()
		os.Stdout.WriteString(".\n")
	}
}

func TestReportOfAKilledProgram(t *testing.T) {
	cmd := child(t, "tracks forever")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for range 200 {
		require.True(t, lines.Scan())
	}
	require.NoError(t, cmd.Process.Kill())
	told := 200
	for lines.Scan() {
		told++
	}
	require.Error(t, cmd.Wait())

	report := reportIn(t, cmd.Dir)
	assert.GreaterOrEqual(t, strings.Count(report, "At crash_test.go line "), told, "every Track that returned is there")
	assert.True(t, strings.HasSuffix(report, "MiB\n"), "the last block is whole")
}

// fillsTheDisk gets no more than a few blocks into its report, then is given
// room again. A write beyond the limit is cut short, as on a full disk.
func fillsTheDisk() {
	limit := func(bytes uint64) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: 1 << 30}); err != nil {
			panic(err)
		}
	}
	tr := must(tracker.New(tracker.Config{
		Device: must(sim.New(sim.Config{})),
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}))
	limit(1000)
	for range 10 {
		must(tr.Alloc(alloc.Shape{3}, alloc.Float32, tracker.Activation))
		tr.Track()
	}
	limit(1 << 20)
	tr.Track()
	if err := tr.Close(); !errors.Is(err, syscall.EFBIG) {
		panic(err)
	}
}

func TestReportOnAFullDisk(t *testing.T) {
	cmd := child(t, "fills the disk")
	require.NoError(t, cmd.Run())
	report := reportIn(t, cmd.Dir)
	blocks := strings.Count(report, "At crash_test.go line ")
	whole := strings.Count(report, "+ | 1 * Size:(3,)")
	assert.Equal(t, blocks-1, whole, "what is there is whole")
	assert.Greater(t, whole, 0)
	assert.Less(t, whole, 10)
	assert.Contains(t, report, " marks are missing here: the file could not be written\n")
	assert.True(t, strings.HasSuffix(report, "MiB\n"))
}

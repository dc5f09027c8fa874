//go:build linux

package tracker_test

import (
	"bufio"
	"errors"
	"fmt"
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
		tracksForever(tracker.Config{})
	case "tracks forever in little room":
		tracksForever(tracker.Config{MaxReportBytes: 8 * alloc.KiB})
	case "fills the disk":
		fillsTheDisk()
	case "begins on a full disk":
		beginsOnAFullDisk()
	case "logs by the default tracker":
		logsByTheDefaultTracker()
	case "dumps forever":
		dumpsForever()
	case "fails its tests":
		failsItsTests()
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
func tracksForever(cfg tracker.Config) {
	cfg.Device = must(sim.New(sim.Config{}))
	tr := must(tracker.New(cfg))
	for {
		must(tr.Alloc(alloc.Shape{3}, alloc.Float32, tracker.Activation))
		tr.Track()
		os.Stdout.WriteString(".\n")
	}
}

// killed runs a program that tracks forever until it has told of enough Tracks, and
// returns its directory and how many it has told of.
func killed(t *testing.T, program string, enough int) (dir string, told int) {
	cmd := child(t, program)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for range enough {
		require.True(t, lines.Scan())
	}
	require.NoError(t, cmd.Process.Kill())
	told = enough
	for lines.Scan() {
		told++
	}
	require.Error(t, cmd.Wait())
	return cmd.Dir, told
}

func TestReportOfAKilledProgram(t *testing.T) {
	dir, told := killed(t, "tracks forever", 200)
	report := reportIn(t, dir)
	assert.GreaterOrEqual(t, strings.Count(report, "At crash_test.go line "), told, "every Track that returned is there")
	assert.True(t, endsWhole(report), "the last block is whole")
}

// endsWhole: a block is one write, which the kernel cuts short only between pages, if the program is killed in it.
func endsWhole(report string) bool {
	return strings.HasSuffix(report, "MiB\n") || len(report)%os.Getpagesize() == 0
}

// TestReportOfAKilledProgramInTwoParts: the latest Tracks that returned are there,
// wherever the program was killed.
func TestReportOfAKilledProgramInTwoParts(t *testing.T) {
	for i := range 20 {
		dir, told := killed(t, "tracks forever in little room", 100+7*i)
		last := 0
		for _, path := range files(t, dir) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			if len(text) == 0 {
				continue // it was just made
			}
			_, after, _ := strings.Cut(string(text), "This file begins with mark ")
			first := 0
			_, err = fmt.Sscan(after, &first)
			require.NoError(t, err)
			last = max(last, first+strings.Count(string(text), "At crash_test.go line ")-1)
			assert.True(t, endsWhole(string(text)), "the last block is whole")
		}
		assert.GreaterOrEqual(t, last, told)
	}
}

// limit bounds the files of this process. A write beyond it is cut short, as on a
// full disk.
func limit(bytes uint64) {
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: 1 << 30}); err != nil {
		panic(err)
	}
}

// fillsTheDisk gets no more than a few blocks into its report, then is given
// room again.
func fillsTheDisk() {
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
	whole := strings.Count(report, "+ | 1 * (3,)")
	assert.Equal(t, blocks-1, whole, "what is there is whole")
	assert.Greater(t, whole, 0)
	assert.Less(t, whole, 10)
	assert.Contains(t, report, " marks are missing here: the file could not be written\n")
	assert.True(t, strings.HasSuffix(report, "MiB\n"))
}

func beginsOnAFullDisk() {
	limit(10)
	_, err := tracker.New(tracker.Config{Device: must(sim.New(sim.Config{}))})
	if !errors.Is(err, syscall.EFBIG) {
		panic(err)
	}
}

func TestNewOnAFullDisk(t *testing.T) {
	cmd := child(t, "begins on a full disk")
	require.NoError(t, cmd.Run())
	assert.Empty(t, files(t, cmd.Dir), "a report with nothing in it is none")
}

// logsByTheDefaultTracker has a handler that uses the tracker whose making is logged.
func logsByTheDefaultTracker() {
	logged := 0
	slog.SetDefault(slog.New(handler{call: func() {
		logged++
		tracker.Track()
	}}))
	tracker.Track()
	tracker.Track()
	if logged != 2 { // the simulated GPU, and the report's file
		panic(logged)
	}
}

func TestLoggerThatTracksByTheDefaultTracker(t *testing.T) {
	cmd := child(t, "logs by the default tracker")
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES=") // without a GPU it logs that it uses a simulated one
	ends("the program", func() { assert.NoError(t, cmd.Run()) })
	assert.Equal(t, 4, strings.Count(reportIn(t, cmd.Dir), "At crash_test.go line "))
}

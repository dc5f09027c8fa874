//go:build unix

package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// screen is a terminal with gpumemtrack in its foreground.
type screen struct {
	t    *testing.T
	cmd  *exec.Cmd
	tty  *os.File
	mu   sync.Mutex
	text strings.Builder
	read chan struct{} // closed when the program has closed its side
}

// onScreen starts gpumemtrack on a terminal, with environment variables in front
// of its arguments.
func onScreen(t *testing.T, columns uint16, args ...string) *screen {
	t.Helper()
	var env []string
	for ; strings.Contains(args[0], "="); args = args[1:] {
		env = append(env, args[0])
	}
	return inTerminal(t, columns, env, program, args...)
}

func inTerminal(t *testing.T, columns uint16, env []string, name string, args ...string) *screen {
	t.Helper()
	env = append(append(os.Environ(), "TERM=xterm", "NO_COLOR=", "CUDA_VISIBLE_DEVICES=0"), env...)
	s := &screen{t: t, cmd: exec.Command(name, args...), read: make(chan struct{})}
	s.cmd.Dir, s.cmd.Env = t.TempDir(), env
	tty, err := pty.StartWithSize(s.cmd, &pty.Winsize{Rows: 24, Cols: columns})
	if err != nil {
		t.Skipf("no terminal to be had here: %v", err)
	}
	s.tty = tty
	go s.watch()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		tty.Close()
		<-s.read
	})
	return s
}

func (s *screen) watch() {
	defer close(s.read)
	buffer := make([]byte, 4096)
	for {
		n, err := s.tty.Read(buffer)
		s.mu.Lock()
		s.text.Write(buffer[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screen) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// press waits until the screen shows a text, and then presses a key.
func (s *screen) press(shown, key string) {
	s.t.Helper()
	require.NoError(s.t, waitFor(func() bool { return strings.Contains(s.shown(), shown) }), s.shown())
	_, err := s.tty.WriteString(key)
	require.NoError(s.t, err)
}

// end waits for the program's end and returns its exit code.
func (s *screen) end() int {
	s.t.Helper()
	require.NoError(s.t, waitFor(func() bool {
		select {
		case <-s.read:
			return true
		default:
			return false
		}
	}), s.shown())
	s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

// What the program writes to a terminal, and what a key gives it.
const (
	ctrlC            = "\x03"
	clearLine        = "\r\x1b[K"
	clearScreen      = "\x1b[H\x1b[J"
	lineDown, lineUp = "\x1bD", "\x1b[A"
)

func TestSensorsWatchEndsWithAKey(t *testing.T) {
	for name, key := range map[string]string{"a letter": "q", "Ctrl+C": ctrlC} {
		t.Run(name, func(t *testing.T) {
			s := onScreen(t, 120, "sensors", "-w", "--interval", "20ms", "--source", "sim")
			s.press(clearScreen, "") // at once, and again
			require.NoError(t, waitFor(func() bool { return strings.Count(s.shown(), clearScreen) > 2 }))
			s.press("Simulated GPU", key)
			assert.Zero(t, s.end())
			assert.NotRegexp(t, `[^\r]\n`, s.shown(), "no staircase")
		})
	}
}

// TestProgressOnATerminal: while a file is read, the terminal shows how much of it was, and then only the answer. Ctrl+C ends
// the program wherever it is. What it reads comes from a pipe, piece by piece.
func TestProgressOnATerminal(t *testing.T) {
	recorded, err := os.ReadFile(filepath.FromSlash("../../../tracker/export/torch/testdata/pytorch4.pickle"))
	require.NoError(t, err)
	for name, interrupt := range map[string]bool{"to the end": false, "Ctrl+C": true} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "pipe")
			require.NoError(t, syscall.Mkfifo(path, 0o600))
			s := inTerminal(t, 80, nil, "sh", "-c", `exec "$0" show - < "$1"`, program, path)
			pipe, err := os.OpenFile(path, os.O_WRONLY, 0)
			require.NoError(t, err)
			defer pipe.Close()
			_, err = pipe.Write(recorded[:len(recorded)/2])
			require.NoError(t, err)
			if interrupt {
				s.press("read ", ctrlC)
				assert.Equal(t, 130, s.end())
				assert.True(t, strings.HasSuffix(s.shown(), clearLine), "%q", s.shown())
				return
			}
			s.press("read ", "")
			_, err = pipe.Write(recorded[len(recorded)/2:])
			require.NoError(t, err)
			require.NoError(t, pipe.Close())
			assert.Zero(t, s.end())
			before, after, found := strings.Cut(s.shown(), "live memory at")
			assert.True(t, found && strings.HasSuffix(before, clearLine), "%q", before)
			assert.NotContains(t, after, clearLine)
		})
	}
}

func TestSensorsInANarrowTerminal(t *testing.T) {
	s := onScreen(t, 60, "sensors", "--source", "sim")
	assert.Zero(t, s.end())
	assert.Contains(t, s.shown(), "Memory")
	assert.NotContains(t, s.shown(), "Fan [%]")
	for line := range strings.SplitSeq(s.shown(), "\n") {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\r")), 60, line)
	}
}

func TestCtrlCEndsARecording(t *testing.T) {
	s := onScreen(t, 80, "record", "--source", "sim", "--interval", "20ms", "-o", "a.png", "-o", "a.csv")
	s.press("450.0 MiB peak", ctrlC)
	assert.Zero(t, s.end(), "that is no failure")
	assert.Regexp(t, `\x1b\[36m\ds  GPU 0 memory used: 450\.0 MiB now, 450\.0 MiB peak █+\x1b\[0m`, s.shown())
	assert.Contains(t, s.shown(), "│ Maximum   │")
	assert.FileExists(t, filepath.Join(s.cmd.Dir, "a.png"))
}

// The live line has a row of its own, which the command's lines do not run into,
// and which is given back before the table.
func TestALiveLineBesideTheCommandsOutput(t *testing.T) {
	s := onScreen(t, 80, "NO_COLOR=1", "record", "--source", "sim", "-o", "a.csv", "--", "sh", "-c", "echo one; read line; echo two")
	s.press("peak", "\n")
	assert.Zero(t, s.end())
	before, table, found := strings.Cut(s.shown(), "┌")
	require.True(t, found)
	assert.Contains(t, before, "\x1b[1;23r", "a row is taken")
	drawn := regexp.MustCompile(`\x1b7.*?\x1b8`)
	assert.Contains(t, drawn.ReplaceAllString(before, ""), "one\r\n"+lineDown+lineUp+"\r\ntwo\r\n")
	assert.Contains(t, before, "\x1b7\x1b[r\x1b8", "and given back")
	assert.NotContains(t, table, "\x1b")
}

// The terminal gives Ctrl+C to the command too: it is not passed on again.
func TestCtrlCReachesTheCommandOnce(t *testing.T) {
	const command = `trap "echo caught; exit 3" INT; echo go; while :; do sleep 0.02; done`
	s := onScreen(t, 80, "NO_COLOR=1", "record", "--source", "sim", "-o", "a.csv", "--", "sh", "-c", command)
	s.press("go\r\n", "")
	s.press("peak", ctrlC)
	assert.Equal(t, 3, s.end())
	assert.Equal(t, 1, strings.Count(s.shown(), "caught"), s.shown())
	assert.Contains(t, s.shown(), "samples: a.csv")
	assert.NotContains(t, s.shown(), "\x1b[3", "no color with NO_COLOR")
}

func TestADumbTerminalHasNoLiveLine(t *testing.T) {
	s := onScreen(t, 80, "TERM=dumb", "record", "--source", "sim", "--duration", "700ms", "-o", "a.csv")
	assert.Zero(t, s.end())
	assert.NotContains(t, s.shown(), clearLine)
}

// A program that has the terminal to itself keeps the last row.
func TestNoLiveLineBesideAFullScreenProgram(t *testing.T) {
	for name, command := range map[string]string{
		"raw mode":  "stty raw; " + program + " record --source sim -o a.csv -- sleep 0.7",
		"--no-live": program + " record --no-live --source sim -o a.csv -- sleep 0.7",
	} {
		t.Run(name, func(t *testing.T) {
			s := inTerminal(t, 80, nil, "sh", "-c", command)
			assert.Zero(t, s.end())
			before, _, _ := strings.Cut(s.shown(), "┌")
			assert.NotContains(t, before, "peak", "drawn while the terminal was the program's")
		})
	}
}

// What is wider than the terminal is shortened, and growth stands out.
func TestADiffOnATerminal(t *testing.T) {
	dir := t.TempDir()
	for name, count := range map[string]string{"old.json": "1", "new.json": "3"} {
		text := `{"schema":"gpumemtrack.snapshot","version":1,"device":"Simulated GPU","stacks":[[{"function":"github.com/somebody/project/with/a/long/name.(*Trainer).forwardAndBackward","file":"/src/train.go","line":20}]],
"sites":[{"kind":"Temporary","dtype":"float32","shape":[1024,1024],"stack":0,"site":{"function":"github.com/somebody/project/with/a/long/name.(*Trainer).forwardAndBackward","file":"/src/train.go","line":20},"live_count":` + count + `,"peak_count":1,"total_count":5}],"allocations":[]}`
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for _, columns := range []uint16{80, 100} {
		s := onScreen(t, columns, "diff", filepath.Join(dir, "old.json"), filepath.Join(dir, "new.json"))
		assert.Zero(t, s.end())
		assert.Contains(t, s.shown(), "\x1b[31m+8.0 MiB\x1b[0m")
		_, table, _ := strings.Cut(s.shown(), "┌")
		for line := range strings.SplitSeq(table, "\n") {
			line = regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(strings.TrimRight(line, "\r"), "")
			assert.LessOrEqual(t, utf8.RuneCountInString(line), int(columns), line)
		}
	}
}

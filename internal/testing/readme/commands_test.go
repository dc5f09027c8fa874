package readme_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
)

var update = flag.Bool("update", false, "write what the commands print into the pages")

// TestCommands runs each command of each page, in its order and in a directory of the
// page's own, and compares what it prints. Words after ```console say more:
//
//	varies    figures differ from run to run: they are not compared
//	columns   some columns and lines are shown
//	emulated  on an emulated GPU: needs gcc
//	root      on an emulated GPU, as root, with BPF
//	elsewhere another package's test runs it: it is left out here
func TestCommands(t *testing.T) {
	t.Parallel() // it waits for other programs
	for _, program := range []string{"go", "sh", "curl", "head"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("the pages' commands need ", program)
		}
	}
	lookAtAllFiles(t)
	bin := t.TempDir()
	args := []string{"build", "-ldflags=-s -w", "-o", bin, "../../../cmd/gpumemtrack"}
	out, err := exec.Command("go", append(args, examples(pages(t))...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	for _, p := range pages(t) {
		if commands := p.commands(); len(commands) > 0 {
			t.Run(filepath.Base(p.path), func(t *testing.T) {
				s := &session{t: t, bin: bin, dir: t.TempDir(), address: "localhost:6061"}
				for _, files := range []string{"tracker", "internal"} { // pages read files of their tests
					require.NoError(t, os.Symlink(filepath.Join(root, files), filepath.Join(s.dir, files)))
				}
				for _, c := range slices.Backward(s.run(p, commands)) {
					p.lines = slices.Replace(p.lines, c.first, c.last, c.printed)
				}
				if *update {
					require.NoError(t, os.WriteFile(p.path, []byte(strings.Join(p.lines, "\n")), 0o644))
				}
			})
		}
	}
}

// examples returns the packages of the examples that the pages' commands run.
func examples(all []page) (packages []string) {
	name := regexp.MustCompile(`(?:go run \./examples/|-- \./)(\w+)`)
	for _, p := range all {
		for _, c := range p.commands() {
			for _, found := range name.FindAllStringSubmatch(c.line, -1) {
				packages = append(packages, "../../../examples/"+found[1])
			}
		}
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// session is a shell in which a page's commands run.
type session struct {
	t        *testing.T
	bin, dir string
	status   int    // of the last command
	address  string // of the server that a page started
}

// difference is a command that printed something else.
type difference struct {
	command
	printed string
}

// run runs the commands, and returns those that printed something else.
func (s *session) run(p page, commands []command) (wrong []difference) {
	for _, c := range commands {
		s.t.Run(c.line, func(t *testing.T) {
			environment, err := s.environment(c)
			if err != nil {
				t.Skip(err)
			}
			printed := s.execute(c.line, environment)
			shown := strings.Join(p.lines[c.first:c.last], "\n")
			if c.shows(shown, printed) {
				return
			}
			wrong = append(wrong, difference{c, printed})
			if !*update {
				assert.Equal(t, shown, printed)
			}
		})
	}
	return wrong
}

// environment returns a command's environment, or why it cannot run here.
func (s *session) environment(c command) ([]string, error) {
	environment := append(os.Environ(), "PATH="+s.bin+":"+os.Getenv("PATH"), "COLUMNS=150", "NO_COLOR=1", "PPROF_TMPDIR="+s.dir)
	root := slices.Contains(c.options, "root")
	if !root && !slices.Contains(c.options, "emulated") {
		return append(environment, "GPUMEMTRACK_DEVICE=sim"), nil
	}
	libs, err := gpuemu.Build()
	if err != nil {
		return nil, err
	}
	state := filepath.Join(s.dir, "gpu")
	if root {
		state, err = "%p", s.leaky(libs)
	} else if err = os.Symlink(filepath.Join(s.bin, "record"), filepath.Join(s.dir, "record")); errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return append(environment, "LD_LIBRARY_PATH="+libs.Dir, "GPUEMU_STATE="+state, "GPUMEMTRACK_DEVICE="), err
}

// leaky builds the C program that a page watches, if it can be watched here.
func (s *session) leaky(libs gpuemu.Libs) error {
	w, err := attach.New(attach.Config{Libraries: []string{filepath.Join(libs.Dir, "libcuda.so.1")}})
	if err != nil {
		return err
	}
	source, err := filepath.Abs("../../../examples/attach/leak.c")
	if err != nil {
		return err
	}
	build := exec.Command("gcc", "-g", "-O1", "-fno-omit-frame-pointer", "-o", "leak", source, "-L"+libs.Dir, "-l:libcuda.so.1")
	build.Dir = s.dir
	return errors.Join(w.Close(), build.Run())
}

// execute runs a line of the shell, and returns what it printed.
func (s *session) execute(line string, environment []string) string {
	line = strings.ReplaceAll(strings.TrimPrefix(line, "sudo "), "go run ./examples/", "")
	if server, ok := strings.CutSuffix(line, " &"); ok {
		s.serve(server, environment)
		return ""
	}
	if line == "echo $?" {
		return fmt.Sprint(s.status)
	}
	line = strings.ReplaceAll(line, "localhost:6061", s.address)
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env = s.dir, environment
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		s.status = exit.ExitCode()
	} else {
		require.NoError(s.t, err)
		s.status = 0
	}
	return strings.TrimRight(string(bytes.ReplaceAll(out, []byte(s.address), []byte("localhost:6061"))), "\n")
}

// serve starts a server on a free port, and waits until it answers.
func (s *session) serve(line string, environment []string) {
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(s.t, err)
	s.address = l.Addr().String()
	require.NoError(s.t, l.Close())
	words := strings.Fields(line)
	cmd := exec.Command(filepath.Join(s.bin, words[0]), append(words[1:], "-addr", s.address)...)
	cmd.Dir, cmd.Env = s.dir, environment
	require.NoError(s.t, cmd.Start())
	s.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	require.Eventually(s.t, func() bool {
		c, err := net.Dial("tcp", s.address)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, time.Minute, 20*time.Millisecond)
}

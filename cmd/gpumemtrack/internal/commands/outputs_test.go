package commands

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/smalldisk"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
)

// The rows of the tables begin with a command's name. DUMP, DUMPS, LOG and RECORDING are files to read, LEAK is
// a program to run; DIR is the folder of the output that the test is about, ELSEWHERE one of other outputs.

// printing lists each way in which a command prints to standard output.
var printing = [][]string{
	{"record", "--source", "sim", "--duration", "30ms", "--interval", "10ms", "-o", "DIR/a.csv"},
	{"record", "--source", "sim", "--duration", "30ms", "--interval", "10ms", "-o", "DIR/b.csv", "--json"},
	{"sensors", "--source", "sim"},
	{"sensors", "--source", "sim", "--json"},
	{"top", "--source", "sim", "--once"},
	{"top", "--source", "sim", "--json"},
	{"estimate", "resnet50"},
	{"estimate", "resnet50", "--json"},
	{"estimate", "list"},
	{"show", "DUMP"},
	{"show", "DUMP", "--json"},
	{"diff", "DUMP", "DUMP"},
	{"diff", "DUMP", "DUMP", "--json"},
	{"leaks", "DUMP"},
	{"leaks", "DUMP", "--json"},
	{"layers", "DUMP"},
	{"layers", "DUMP", "--json"},
	{"replay", "DUMP"},
	{"replay", "DUMP", "--json"},
	{"replay", "DUMP", "--smallest"},
	{"replay", "DUMP", "--smallest", "--json"},
	{"explain", "DUMP"},
	{"explain", "DUMP", "--json"},
	{"explain", "LOG"},
	{"explain", "LOG", "--json"},
	{"explain", "DUMPS"},
	{"explain", "DUMPS", "--json"},
	{"demo", "--dir", "DIR", "--pause", "0"},
	{"completion", "bash"},
	{"version"},
	{"version", "--json"},
	{"--help"},
	{"record", "--help"},
	{"help", "estimate-json"},
}

// withoutEnd lists the commands that print until somebody ends them.
var withoutEnd = [][]string{
	{"sensors", "--source", "sim", "--watch", "--interval", "10ms"},
	{"sensors", "--source", "sim", "--watch", "--interval", "10ms", "--json"},
	{"show", "DUMP", "--web=127.0.0.1:0"},
}

// writing lists each kind of file that a command writes.
var writing = [][]string{
	{"record", "--source", "sim", "--duration", "30ms", "--interval", "10ms", "-o", "DIR/a.csv"},
	{"record", "--source", "sim", "--duration", "30ms", "--interval", "10ms", "-o", "DIR/a.jsonl"},
	{"record", "--source", "sim", "--duration", "30ms", "--interval", "10ms", "-o", "ELSEWHERE/a.jsonl", "-o", "DIR/a.png"},
	{"record", "--source", "sim", "--duration", "30ms", "--interval", "10ms", "-o", "ELSEWHERE/b.jsonl", "-o", "DIR/a.svg"},
	{"record", "--source", "sim", "--duration", "30ms", "--interval", "10ms", "-o", "ELSEWHERE/c.jsonl", "-o", "DIR/a.html"},
	{"record", "--source", "sim", "--interval", "10ms", "-o", "ELSEWHERE/d.jsonl", "--json=DIR/a.json", "--", "true"},
	{"chart", "RECORDING", "-o", "DIR/a.png"},
	{"chart", "RECORDING", "-o", "DIR/a.svg"},
	{"chart", "RECORDING", "-o", "DIR/a.html"},
	{"convert", "DUMP", "-o", "DIR/a.pb.gz"},
	{"convert", "DUMP", "-o", "DIR/a.pickle"},
	{"convert", "DUMP", "-o", "DIR/a.trace.json"},
	{"convert", "DUMP", "-o", "DIR/a.html"},
	{"convert", "DUMP", "-o", "DIR/a.json"},
	{"demo", "--dir", "DIR", "--pause", "0"},
	{"attach", "--json=DIR/a.jsonl", "--", "LEAK"},
	{"attach", "-o", "DIR/a.dump.json", "--", "LEAK"},
	{"attach", "-o", "DIR/a.html", "--", "LEAK"},
	{"attach", "-o", "DIR/a.pb.gz", "--", "LEAK"},
	{"attach", "-o", "DIR/a.pickle", "--", "LEAK"},
	{"attach", "-o", "DIR/a.trace.json", "--", "LEAK"},
	{"attach", "--preload", "--json=DIR/a.jsonl", "--", "LEAK"},
}

// reads are the flags whose file is read.
var reads = []string{"library", "measured", "mmproj", "model-draft"}

// TestEveryOutputHasARow: each command, and each of its flags that makes it write something else, is in the
// tables.
func TestEveryOutputHasARow(t *testing.T) {
	has := func(table [][]string, name, flag string) bool {
		return slices.ContainsFunc(table, func(row []string) bool {
			return row[0] == name && slices.ContainsFunc(row[1:], func(word string) bool { return flag == "" || strings.HasPrefix(word, flag) })
		})
	}
	for _, command := range All {
		cmd := command.New(new(cli.App))
		assert.True(t, has(printing, command.Name, "") || has(writing, command.Name, "") || command.Name == "version", command.Name)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			value, _ := pflag.UnquoteUsage(f)
			switch word := "--" + f.Name; {
			case value == "FILE" || value == "DIRECTORY":
				found := slices.Contains(reads, f.Name) || has(writing, command.Name, word) || f.Shorthand != "" && has(writing, command.Name, "-"+f.Shorthand)
				assert.True(t, found, "no test has %s --%s FILE on a full disk", command.Name, f.Name)
			case f.Name == "json":
				assert.True(t, has(printing, command.Name, word), "no test has the output of %s --json", command.Name)
			}
		})
	}
}

// places makes what the words of the tables stand for.
type places struct {
	t             *testing.T
	dump, samples string
	leak          string // the program of examples/attach; "" until a row needs it
}

func newPlaces(t *testing.T) *places {
	t.Helper()
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	t.Setenv("BROWSER", "")
	_, _ = gpuemu.Build()                   // args returns the error. It stays in the cache of before
	t.Setenv("XDG_CACHE_HOME", t.TempDir()) // where --preload keeps what it compiles
	p := &places{t: t, dump: filepath.Join(t.TempDir(), "a.dump.json"), samples: filepath.Join(t.TempDir(), "a.jsonl")}
	gpu, err := sim.New(sim.Config{})
	require.NoError(t, err)
	defer gpu.Close()
	tr, err := tracker.New(tracker.Config{Device: gpu, Report: io.Discard})
	require.NoError(t, err)
	defer tr.Close()
	section := tr.Section("step")
	for range 3 {
		_, err = tr.Alloc(alloc.Shape{1 << 18}, alloc.Float32, tracker.Parameter)
		require.NoError(t, err)
	}
	section.End()
	for _, path := range []string{p.dump, filepath.Join(filepath.Dir(p.dump), "b.dump.json")} {
		file, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, errors.Join(tr.Dump().WriteJSON(file), file.Close()))
	}
	const message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.12 GiB is free.\n"
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(p.samples), "error.log"), []byte(message), 0o600))
	var stderr bytes.Buffer
	require.Zero(t, cli.Run([]string{"record", "--source", "sim", "--duration", "50ms", "--interval", "10ms", "-o", p.samples}, nil, io.Discard, &stderr, All...), &stderr)
	return p
}

// args returns a row's words with dir for DIR. It skips the test if the row cannot run here.
func (p *places) args(t *testing.T, row []string, dir string) []string {
	t.Helper()
	if row[0] == "attach" {
		libs, err := gpuemu.Build()
		if err != nil {
			t.Skip(err)
		}
		if !slices.Contains(row, "--preload") {
			w, err := attach.New(attach.Config{Libraries: []string{filepath.Join(libs.Dir, "libcuda.so.1")}})
			if err != nil {
				t.Skip("BPF and uprobes are refused here: ", err)
			}
			require.NoError(t, w.Close())
		}
		t.Setenv("LD_LIBRARY_PATH", libs.Dir)
		t.Setenv("GPUEMU_STATE", filepath.Join(t.TempDir(), "%p"))
		if p.leak == "" {
			p.leak = filepath.Join(p.t.TempDir(), "leak")
			text, err := exec.Command("gcc", "-g", "-O1", "-o", p.leak, "../../../../examples/attach/leak.c", "-L"+libs.Dir, "-l:libcuda.so.1").CombinedOutput()
			require.NoError(t, err, "%s", text)
		}
	}
	words := strings.NewReplacer("DUMPS", filepath.Dir(p.dump)+"/*", "DUMP", p.dump, "RECORDING", p.samples, "LOG", filepath.Join(filepath.Dir(p.samples), "error.log"), "DIR", dir, "ELSEWHERE", t.TempDir())
	out := make([]string, 0, len(row)+1)
	for _, word := range row {
		if word == "LEAK" {
			out = append(out, p.leak, "50")
			continue
		}
		out = append(out, words.Replace(word))
	}
	return out
}

// full is a stream on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/full", Err: syscall.ENOSPC}
}

// closedPipe returns a pipe whose reader has gone.
func closedPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	t.Cleanup(func() { w.Close() })
	return w
}

func TestStandardOutputOnAFullDisk(t *testing.T) {
	p := newPlaces(t)
	for _, row := range slices.Concat(printing, withoutEnd) {
		t.Run(strings.Join(row, " "), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if !slices.ContainsFunc(withoutEnd, func(of []string) bool { return slices.Equal(of, row) }) {
				require.Zero(t, cli.Run(p.args(t, row, t.TempDir()), nil, &stdout, &stderr, All...), &stderr)
				require.NotEmpty(t, &stdout, "it prints through the App")
			}
			stderr.Reset()
			assert.Equal(t, cli.ExitFailed, cli.Run(p.args(t, row, t.TempDir()), nil, full{}, &stderr, All...), &stderr)
			assert.Regexp(t, `(?m)^gpumemtrack: .*write /dev/full: no space left on device$`, stderr.String())
		})
	}
}

// TestANoIsLostOnAFullDisk: the code of an answer stands for an answer that was printed.
func TestANoIsLostOnAFullDisk(t *testing.T) {
	var stderr bytes.Buffer
	args := []string{"estimate", "resnet50", "--fits", "1MiB"}
	require.Equal(t, cli.ExitUnfit, cli.Run(args, nil, io.Discard, &stderr, All...))
	stderr.Reset()
	assert.Equal(t, cli.ExitFailed, cli.Run(args, nil, full{}, &stderr, All...))
	assert.Contains(t, stderr.String(), "does not fit")
	assert.Contains(t, stderr.String(), "no space left on device")
}

func TestStandardErrorOnAFullDisk(t *testing.T) {
	assert.Equal(t, cli.ExitFailed, cli.Run([]string{"demo", "--dir", t.TempDir(), "--pause", "0"}, nil, io.Discard, full{}, All...))
	assert.Equal(t, cli.ExitUsage, cli.Run([]string{"no-such"}, nil, io.Discard, full{}, All...))
}

// TestTablesBesideACommand: what is lost of them is a failure, unless nobody was there to read it. The command's code is
// its own.
func TestTablesBesideACommand(t *testing.T) {
	p := newPlaces(t)
	for _, row := range [][]string{
		{"record", "--source", "sim", "--interval", "10ms", "-o", "DIR/a.csv", "-f", "--", "sh", "-c", "exit CODE"},
		{"attach", "--preload", "--", "sh", "-c", "$LEAK 50; exit CODE"},
	} {
		t.Run(row[0], func(t *testing.T) {
			for code, want := range map[string]int{"0": cli.ExitFailed, "5": 5} {
				args := p.args(t, row, t.TempDir())
				t.Setenv("LEAK", p.leak)
				args[len(args)-1] = strings.Replace(args[len(args)-1], "CODE", code, 1)
				assert.Equal(t, want, cli.Run(args, nil, io.Discard, full{}, All...))
				if runtime.GOOS != "windows" {
					assert.Equal(t, code, strconv.Itoa(cli.Run(args, nil, io.Discard, closedPipe(t), All...)))
				}
			}
		})
	}
}

func TestStandardOutputOfAClosedPipe(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGPIPE")
	}
	p := newPlaces(t)
	for _, row := range slices.Concat(printing, withoutEnd) {
		t.Run(strings.Join(row, " "), func(t *testing.T) {
			var stderr bytes.Buffer
			code := cli.Run(p.args(t, row, t.TempDir()), nil, closedPipe(t), &stderr, All...)
			assert.Equal(t, cli.ExitSignal+int(syscall.SIGPIPE), code)
			assert.NotContains(t, stderr.String(), "gpumemtrack:", "nothing is wrong")
		})
	}
}

// TestFilesOnAFullDisk: the error names the file, and nothing that is half written is left.
func TestFilesOnAFullDisk(t *testing.T) {
	p := newPlaces(t)
	for _, row := range writing {
		t.Run(strings.Join(row, " "), func(t *testing.T) {
			dir := smalldisk.Dir(t, 16<<10)
			args := p.args(t, row, dir)
			smalldisk.Fill(t, dir)
			var stderr bytes.Buffer
			assert.Equal(t, cli.ExitFailed, cli.Run(args, nil, io.Discard, &stderr, All...), &stderr)
			assert.Regexp(t, `(?m)^gpumemtrack: .*`+regexp.QuoteMeta(dir)+`.*: no space left on device`, stderr.String())
			require.NoError(t, os.Remove(filepath.Join(dir, "fill")))
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			for _, entry := range left { // of a file that grows, what was whole stays
				text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
				require.NoError(t, err)
				assert.True(t, len(text) == 0 || bytes.HasSuffix(text, []byte("\n")), "%s ends within a line", entry.Name())
				assert.Regexp(t, `\.(jsonl|csv|txt)$`, entry.Name(), "a file that is written at once is whole or is not there")
			}
		})
	}
}

// TestFilesThatGoAway: the program that is watched removes the folder.
func TestFilesThatGoAway(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be removed")
	}
	p := newPlaces(t)
	for _, row := range [][]string{
		{"record", "--source", "sim", "--interval", "10ms", "-o", "DIR/a.jsonl"},
		{"record", "--source", "sim", "--interval", "10ms", "-o", "DIR/a.csv"},
		{"record", "--source", "sim", "--interval", "10ms", "-o", "ELSEWHERE/a.csv", "-o", "DIR/a.png"},
		{"record", "--source", "sim", "--interval", "10ms", "-o", "ELSEWHERE/a.csv", "--json=DIR/a.json"},
		{"attach", "--json=DIR/a.jsonl"},
		{"attach", "-o", "DIR/a.html"},
	} {
		t.Run(strings.Join(row, " "), func(t *testing.T) {
			for command, want := range map[string]int{"": cli.ExitFailed, "; exit 5": 5} {
				dir := filepath.Join(t.TempDir(), "runs")
				require.NoError(t, os.Mkdir(dir, 0o700))
				args := p.args(t, row, dir)
				program := "true"
				if row[0] == "attach" {
					program = p.leak + " 50"
				}
				args = append(args, "--", "sh", "-c", program+"; rm -r "+dir+command)
				var stderr bytes.Buffer
				assert.Equal(t, want, cli.Run(args, nil, io.Discard, &stderr, All...), &stderr)
				assert.Regexp(t, `(?m)^gpumemtrack: .*`+regexp.QuoteMeta(dir)+`.*(no such file or directory|was removed while it was written)`, stderr.String())
			}
		})
	}
}

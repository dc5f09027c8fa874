package watch

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// canAttach skips the test where no probe can be set.
func canAttach(t *testing.T) gpuemu.Libs {
	t.Helper()
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	w, err := attach.New(attach.Config{Libraries: []string{filepath.Join(libs.Dir, "libcuda.so.1")}})
	if err != nil {
		t.Skip("BPF and uprobes are refused here: ", err)
	}
	require.NoError(t, w.Close())
	return libs
}

// leaky builds examples/attach and returns the command that runs it on the emulated driver.
func leaky(t *testing.T, libs gpuemu.Libs) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leak")
	text, err := exec.Command("gcc", "-g", "-O1", "-fno-omit-frame-pointer", "-o", path, "../../../../examples/attach/leak.c", "-L"+libs.Dir, "-l:libcuda.so.1").CombinedOutput()
	require.NoError(t, err, "%s", text)
	t.Setenv("LD_LIBRARY_PATH", libs.Dir)
	t.Setenv("GPUEMU_STATE", filepath.Join(t.TempDir(), "%p"))
	return []string{path, "50"}
}

func TestAttach(t *testing.T) {
	libs := canAttach(t)
	command := leaky(t, libs)
	for _, name := range []string{"a.dump.json", "a.html", "a.pb.gz", "a.pickle", "a.trace.json"} {
		var stdout, stderr bytes.Buffer
		file := filepath.Join(t.TempDir(), name)
		require.Zero(t, run(append([]string{"attach", "-o", file, "--"}, command...), nil, &stdout, &stderr), stderr.String())
		assert.Empty(t, stdout.String(), "it is the command's")
		assert.Contains(t, stderr.String(), "5 buffers, 5.0 MiB live; peak ")
		assert.Contains(t, stderr.String(), "; in all 51 buffers, 306.0 MiB")
		info, err := os.Stat(file)
		require.NoError(t, err)
		assert.Positive(t, info.Size())
		if name == "a.dump.json" {
			f, err := files.ReadFile(file)
			require.NoError(t, err)
			assert.EqualValues(t, 5, f.Dump.Snapshot.Live.Count)
			assert.EqualValues(t, 98, len(slices.Collect(f.Dump.Events())), "51 allocations, 46 frees, and the mark at the end")
		}
	}
}

// TestAttachWithoutRights needs none, and a compiler.
func TestAttachWithoutRights(t *testing.T) {
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(append([]string{"attach", "--preload", "--"}, leaky(t, libs)...), nil, &stdout, &stderr), stderr.String())
	assert.Contains(t, stderr.String(), "5 buffers, 5.0 MiB live; peak ")
	assert.Contains(t, stderr.String(), "new_buffer")
}

// TestAttachPushes has a program that leaks, and a server that takes what it allocated by the end.
func TestAttachPushes(t *testing.T) {
	libs := canAttach(t)
	var paths sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, err := gzip.NewReader(r.Body)
		if assert.NoError(t, err) {
			body, err := io.ReadAll(text)
			assert.NoError(t, err)
			paths.Store(r.URL.Path, string(body))
		}
	}))
	defer server.Close()
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(append([]string{"attach", "--preload", "--otlp", server.URL, "--"}, leaky(t, libs)...), nil, &stdout, &stderr), stderr.String())
	assert.NotContains(t, stderr.String(), "--otlp")
	profiles, ok := paths.Load("/v1development/profiles")
	require.True(t, ok)
	assert.Contains(t, profiles, "inuse_space")
	assert.Contains(t, profiles, "process.pid")
	metrics, ok := paths.Load("/v1/metrics")
	require.True(t, ok)
	assert.Contains(t, metrics, "gpumem.memory.allocated")
}

func TestAttachPassesTheExitCodeOn(t *testing.T) {
	libs := canAttach(t)
	command := leaky(t, libs)
	var stdout, stderr bytes.Buffer
	file := filepath.Join(t.TempDir(), "marks.jsonl")
	code := run([]string{"attach", "--json=" + file, "--", "sh", "-c", strings.Join(command, " ") + "; exit 5"}, nil, &stdout, &stderr)
	assert.Equal(t, 5, code)
	assert.Empty(t, stdout.String()+stderr.String(), "they are the command's")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var mark attachedMark
	require.NoError(t, json.Unmarshal(text, &mark))
	assert.Equal(t, "leak", mark.Process.Program)
	assert.EqualValues(t, 5, mark.Mark.Live.Count)

	assert.Equal(t, 0, run([]string{"attach", "--", "true"}, nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "nothing called the CUDA driver")
	pair := "libc.so.6:valloc,free"
	assert.Equal(t, 0, run([]string{"attach", "--functions", pair, "--", "true"}, nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "no allocation by "+pair+" was seen")
	assert.Contains(t, stderr.String(), "add void", "its calls may all look like failures")
	stderr.Reset()
	assert.Equal(t, 0, run([]string{"attach", "--functions", "ggml", "--", "true"}, nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "write its path: --functions ggml=FILE")
	assert.Contains(t, stderr.String(), "libggml-base.so was found nowhere", "so it was not found late")
	assert.NotContains(t, stderr.String(), "void", "the functions are known")
	stderr.Reset()
	assert.Equal(t, 1, run([]string{"attach", "--functions", "ggml=" + command[0], "--", "true"}, nil, &stdout, &stderr))
	assert.NotContains(t, stderr.String(), "found", "its path is given")
}

// TestAttachHasTheCommandsExitCode, whatever it did with the driver, and says how far it came.
func TestAttachHasTheCommandsExitCode(t *testing.T) {
	libs := canAttach(t)
	t.Setenv("LD_LIBRARY_PATH", libs.Dir)
	t.Setenv("GPUEMU_STATE", filepath.Join(t.TempDir(), "%p"))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	uses := filepath.Join(t.TempDir(), "uses")
	text, err := exec.Command("gcc", "-o", uses, "../../../../tracker/attach/testdata/uses.c", "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", text)
	for step, want := range map[string]string{
		"nothing": "nothing called the CUDA driver", "lookup": "libcuda was loaded, but the driver was not initialized",
		"init": "the driver was initialized, but nothing was allocated", "context": "the driver was used, but nothing was allocated",
	} {
		for _, flags := range [][]string{nil, {"--preload"}} {
			var stdout, stderr bytes.Buffer
			args := slices.Concat([]string{"attach"}, flags, []string{"--", uses, step, "end"})
			assert.Equal(t, 7, run(args, nil, &stdout, &stderr), step)
			assert.Contains(t, stderr.String(), "gpumemtrack: attach: "+want)
		}
	}
	for command, want := range map[string]int{"exit 0": 0, "kill -9 $$": 128 + 9, "kill -TERM $$": 128 + 15, "kill -PIPE $$": 128 + 13} {
		for _, args := range [][]string{{"attach", "--preload"}, {"attach"}, {"record", "--source", "sim", "-o", filepath.Join(t.TempDir(), "a.csv")}} {
			var stdout, stderr bytes.Buffer
			assert.Equal(t, want, run(append(args, "--", "sh", "-c", command), nil, &stdout, &stderr), "%s: %s", args[0], command)
		}
	}
	var stdout, stderr bytes.Buffer
	file := filepath.Join(t.TempDir(), "a.html")
	assert.Equal(t, 0, run([]string{"attach", "--preload", "-o", file, "--", "true"}, nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), file+" was not written")
	assert.NoFileExists(t, file)
}

// TestAttachEndsWithItsReader: where nobody reads the tables of a process, attach ends, silently, and the process goes on.
// With a file to write it does not.
func TestAttachEndsWithItsReader(t *testing.T) {
	libs := canAttach(t)
	dir := t.TempDir()
	program, source := filepath.Join(dir, "busy"), filepath.Join(dir, "busy.c")
	require.NoError(t, os.WriteFile(source, []byte(`
		int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, unsigned long), usleep(unsigned);
		int main(void) {
			void *context;
			unsigned long long p;
			if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
				return 1;
			while (!cuMemAlloc_v2(&p, 512))
				usleep(10000);
			return 2;
		}`), 0o600))
	text, err := exec.Command("gcc", "-g", "-w", "-o", program, source, "-L"+libs.Dir, "-l:libcuda.so.1").CombinedOutput()
	require.NoError(t, err, "%s", text)
	t.Setenv("LD_LIBRARY_PATH", libs.Dir)
	t.Setenv("GPUEMU_STATE", filepath.Join(dir, "%p"))
	for _, flags := range [][]string{{"--json"}, nil, {"-o", filepath.Join(dir, "a.dump.json")}} {
		cmd := exec.Command(program)
		require.NoError(t, cmd.Start())
		r, w, err := os.Pipe()
		require.NoError(t, err)
		ended := make(chan int, 1)
		var stderr bytes.Buffer
		go func() {
			ended <- run(append([]string{"attach", "--every", "10ms", "--pid", fmt.Sprint(cmd.Process.Pid)}, flags...), nil, w, &stderr)
		}()
		_, err = r.Read(make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, r.Close())
		code := 0
		if slices.Contains(flags, "-o") {
			select {
			case <-ended:
				assert.Fail(t, "the file was still to write")
			case <-time.After(300 * time.Millisecond):
			}
			require.NoError(t, cmd.Process.Kill())
			code = <-ended
			assert.FileExists(t, flags[1])
		} else {
			code = <-ended
			require.NoError(t, cmd.Process.Kill())
		}
		assert.Equal(t, cli.ExitSignal+int(syscall.SIGPIPE), code)
		assert.NotContains(t, stderr.String(), "EPIPE")
		assert.NotContains(t, stderr.String(), "broken pipe")
		_ = cmd.Wait() // it was killed
		require.NoError(t, w.Close())
	}
}

// TestAttachToWhatAllocatesNothing: it is a failure only if a file was asked for.
func TestAttachToWhatAllocatesNothing(t *testing.T) {
	canAttach(t)
	for want, flags := range map[int][]string{0: nil, cli.ExitFailed: {"-o", filepath.Join(t.TempDir(), "a.html")}} {
		cmd := exec.Command("sleep", "0.3")
		require.NoError(t, cmd.Start())
		var stdout, stderr bytes.Buffer
		assert.Equal(t, want, run(append([]string{"attach", "--pid", fmt.Sprint(cmd.Process.Pid)}, flags...), nil, &stdout, &stderr), &stderr)
		assert.Contains(t, stderr.String(), "nothing called the CUDA driver")
		require.NoError(t, cmd.Wait())
	}
}

// TestWhatIsNotKnownOfARunningProcess: one that has loaded the driver may hold what it allocated before it was watched.
func TestWhatIsNotKnownOfARunningProcess(t *testing.T) {
	for use, want := range map[attach.DriverUse]string{
		attach.NotLoaded: "nothing called the CUDA driver", attach.Loaded: "What it allocated before is not known", attach.Called: "What it allocated before is not known",
	} {
		assert.Contains(t, attachOptions{pid: 7}.whyNothing(use), want)
	}
	assert.NotContains(t, attachOptions{}.whyNothing(attach.Loaded), "before")
}

func TestAttachedPages(t *testing.T) {
	libs := canAttach(t)
	command := leaky(t, libs)
	w, err := attach.New(attach.Config{})
	require.NoError(t, err)
	defer w.Close()
	h := attachedHandler(w, []string{"gpu-7.example.com"})
	ask := func(url string) *httptest.ResponseRecorder {
		out := httptest.NewRecorder()
		h.ServeHTTP(out, httptest.NewRequest("GET", url, nil))
		return out
	}
	get := func(path string) *httptest.ResponseRecorder { return ask("http://localhost" + path) }
	assert.Equal(t, 200, ask("http://gpu-7.example.com/list").Code)
	refused := ask("http://gpu-8.example.com/list")
	assert.Equal(t, 403, refused.Code)
	assert.Contains(t, refused.Body.String(), `--allow-host "gpu-8.example.com"`)
	assert.Contains(t, get("/").Body.String(), "Nothing has asked for memory yet")
	leak := exec.Command(command[0], command[1:]...)
	require.NoError(t, w.Start(leak))
	require.NoError(t, leak.Wait())
	page := "/" + get("/").Header().Get("Location")
	require.Regexp(t, `^/\d+-gpu0/$`, page)
	for path, want := range map[string]string{
		page:                     "<title>Live: GPU [0]",
		page + "report":          "new_buffer",
		page + "leaks":           `"suspects":`,
		page + "profile?debug=1": "new_buffer",
		page + "timeline":        `"seconds":`,
		page + "levels":          `"closed":true`, // the program has ended
		"/list":                  "leak[",
		"/dump":                  `"gpumemtrack.dump"`,
	} {
		assert.True(t, strings.Contains(get(path).Body.String(), want), path)
	}
	assert.Regexp(t, `gpumem_live_bytes\{container="",device="GPU",kind="Tensor",ordinal="0",pid="\d+",program="leak",uuid=""\} 5.24288e\+06`, get("/metrics").Body.String())
	assert.Equal(t, 404, get("/other").Code)
	assert.Equal(t, 400, get(page+"profile?gc=1").Code, "another program's garbage is not ours to collect")
}

// TestAttachExamples: docs/attach.md has what is printed, but for numbers of processes, times, folders and
// what is not of the program.
func TestAttachExamples(t *testing.T) {
	libs := canAttach(t)
	text, err := os.ReadFile("../../../../docs/attach.md")
	require.NoError(t, err)
	for name, build := range map[string]func(path string) *exec.Cmd{
		"leak": func(path string) *exec.Cmd {
			return exec.Command("gcc", "-g", "-O1", "-fno-omit-frame-pointer", "-o", path, "../../../../examples/attach/leak.c", "-L"+libs.Dir, "-l:libcuda.so.1")
		},
		"goleak": func(path string) *exec.Cmd {
			cmd := exec.Command("go", "build", "-tags", "cuda", "-o", path, "../../../../examples/attach/goleak")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_LDFLAGS=-L"+libs.Dir)
			return cmd
		},
	} {
		t.Run(name, func(t *testing.T) {
			block := regexp.MustCompile(`(?s)\$ sudo gpumemtrack (attach [^\n]*/` + name + `( \d+)?)\n(.*?)` + "```").FindStringSubmatch(string(text))
			require.NotNil(t, block)
			path := filepath.Join(t.TempDir(), name)
			out, err := build(path).CombinedOutput()
			require.NoError(t, err, "%s", out)
			t.Setenv("LD_LIBRARY_PATH", libs.Dir)
			t.Setenv("GPUEMU_STATE", filepath.Join(t.TempDir(), "%p"))
			var stdout, stderr bytes.Buffer
			args := strings.Fields(strings.ReplaceAll(block[1], "./"+name, path))
			require.Zero(t, run(args, nil, &stdout, &stderr), stderr.String())
			assert.Equal(t, ofTheProgram(block[3]), ofTheProgram(stderr.String()))
		})
	}
}

// TestAttachPythonExample: README has what is printed of a script that frees everything.
func TestAttachPythonExample(t *testing.T) {
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	readme, err := os.ReadFile("../../../../README.md")
	require.NoError(t, err)
	block := regexp.MustCompile(`(?s)\$ gpumemtrack attach --preload -- python train.py\n(.*?)` + "```").FindStringSubmatch(string(readme))
	require.NotNil(t, block)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("LD_LIBRARY_PATH", libs.Dir)
	t.Setenv("GPUEMU_STATE", filepath.Join(t.TempDir(), "%p"))
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"attach", "--preload", "--", "python3", "../../../../examples/attach/train.py"}, nil, &stdout, &stderr), stderr.String())
	version := regexp.MustCompile(`python[\d.]*`)
	assert.Equal(t, version.ReplaceAllString(ofTheProgram(block[1]), "python"), version.ReplaceAllString(ofTheProgram(stdout.String()+stderr.String()), "python"))
}

// ofTheProgram leaves out what differs from run to run and from machine to machine.
func ofTheProgram(printed string) string {
	for pattern, instead := range map[string]string{
		`\d\d:\d\d:\d\d \|`:    "TIME |",
		`\[\d+\] on [^,]+,`:    "[PID] on HOST,",
		`\t\S*/`:               "\t",
		`_cgo_[0-9a-f]+_`:      "_cgo_",
		`(?m)^suspect:.*\n`:    "",
		`(?m)^\t(path|also).*`: "",
		`(?m)^(runtime\.|0x|\(|_cgo_|main\._Cfunc).*\n\t.*\n`: "",
	} {
		printed = regexp.MustCompile(pattern).ReplaceAllString(printed, instead)
	}
	return strings.TrimSpace(printed)
}

func TestAttachSaysWhatIsWrong(t *testing.T) {
	for want, args := range map[string][]string{
		"name a process with --pid, or a command": {},
		"not both":                             {"--pid", "1", "--", "true"},
		"write -- before":                      {"true"},
		"--preload is for a command":           {"--preload", "--pid", "1"},
		"--all is every process":               {"--all", "--pid", "1"},
		"not with --pid, nor with a command":   {"--all", "--", "true"},
		"--all needs probes":                   {"--all", "--preload"},
		"--functions needs probes":             {"--preload", "--functions", "a.so:b,c", "--", "true"},
		"want LIBRARY:ALLOC,FREE":              {"--functions", "libpool.so", "--", "true"},
		"cannot be negative":                   {"--every", "-1s", "--", "true"},
		"--allow-host is for --live ADDRESS":   {"--allow-host", "gpu-7", "--", "true"},
		"want a name that ends in .dump.json":  {"-o", "a.png", "--", "true"},
		"cannot run \"there-is-no-such\"":      {"--", "there-is-no-such"},
		"name a directory that exists and may": {"-o", "no/such/folder/a.html", "--", "true"},
	} {
		var stdout, stderr bytes.Buffer
		assert.NotZero(t, run(append([]string{"attach"}, args...), nil, &stdout, &stderr))
		assert.Contains(t, stderr.String(), want)
	}
	if runtime.GOOS != "linux" {
		var stdout, stderr bytes.Buffer
		assert.NotZero(t, run([]string{"attach", "--pid", "1"}, nil, &stdout, &stderr))
		assert.Contains(t, stderr.String(), "Linux")
	}
}

// TestCachesAreNamed, and what shows the blocks in their segments, unless that is beside them already.
func TestCachesAreNamed(t *testing.T) {
	for file, want := range map[string]string{"/venv/torch/lib/libc10_cuda.so": "PyTorch", "/home/me/train": ""} {
		s, err := snapshot.Read(strings.NewReader(`{"schema": "gpumemtrack.snapshot", "version": 2, "frames": [{"function": "f", "file": "` + file + `"}], "stacks": [[0]],
			"sites": [{"kind": "Device", "each_bytes": 2097152, "stack": 0, "live_count": 1, "total_count": 1}]}`))
		require.NoError(t, err)
		name, instead := cacheOf(s, unwatched)
		assert.Equal(t, want, name)
		if name != "" {
			assert.Contains(t, instead, "--functions pytorch")
			_, instead = cacheOf(s, unseen)
			assert.NotContains(t, instead, "--functions")
			_, instead = cacheOf(s, seen)
			assert.Equal(t, "the table of PyTorch's blocks", instead)
		}
	}
}

// TestNoAdviceToDoWhatIsDone: where PyTorch's blocks are watched, the end of its segments sends nobody to watch them.
func TestNoAdviceToDoWhatIsDone(t *testing.T) {
	libs := canAttach(t)
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("there is no g++")
	}
	dir := t.TempDir()
	library, program := filepath.Join(dir, "libc10_cuda.so"), filepath.Join(dir, "client")
	const sources = "../../../../tracker/attach/testdata/"
	for _, args := range [][]string{
		{"-fno-optimize-sibling-calls", "-shared", "-fPIC", "-o", library, sources + "torchcuda.cc"},
		{"-o", program, sources + "torchclient.cc", library, "-Wl,-rpath," + dir, "-lpthread"},
	} {
		args = append(args, "-std=c++17", "-O2", "-L"+libs.Dir, "-l:libcuda.so.1")
		text, err := exec.Command("g++", args...).CombinedOutput()
		require.NoError(t, err, "%s", text)
	}
	t.Setenv("LD_LIBRARY_PATH", libs.Dir)
	t.Setenv("GPUEMU_STATE", filepath.Join(t.TempDir(), "%p"))
	for pair, advice := range map[string]string{"": "--functions pytorch, or torch.cuda", "pytorch=" + library: "the table of PyTorch's blocks shows"} {
		var o attachOptions
		if pair != "" {
			o.functions = []string{pair}
		}
		text := attachedUntilRead(t, o, program)
		assert.Contains(t, text, "These are segments of PyTorch, which has its own cache: "+advice)
		assert.Equal(t, pair == "", strings.Contains(text, "--functions"), text)
	}
}

// attachedUntilRead returns what attach prints at the end of a program that prints "done" and then waits for the end of
// its input. By then the watcher has read all that the program did, so that it knows the names: of one that ends at once
// nobody can read what it has loaded.
func attachedUntilRead(t *testing.T, o attachOptions, program string) string {
	t.Helper()
	w, err := attach.New(o.config())
	require.NoError(t, err)
	defer w.Close()
	cmd := exec.Command(program)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, w.Start(cmd))
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && lines.Text() != "done" {
	}
	assert.Equal(t, "done", lines.Text())
	w.Sync()
	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
	var text bytes.Buffer
	require.NoError(t, attachedEnd(&cli.App{Stderr: &text}, w, &text, o, nil))
	return text.String()
}

// TestAttachedTotals: a device has a peak and a total, the host's memory has only what is live.
func TestAttachedTotals(t *testing.T) {
	host := snapshot.Levels{Memory: map[alloc.Memory]mem.Tally{alloc.PinnedMemory: {Count: 2, Bytes: 3 * alloc.MiB}}}
	live := mem.Tally{Count: 1, Bytes: alloc.MiB}
	device := snapshot.Levels{Live: live, Memory: map[alloc.Memory]mem.Tally{alloc.DeviceMemory: live}}
	assert.Equal(t, "2 buffers, 3.0 MiB live", attachedTotals(&snapshot.Snapshot{Levels: host}))
	assert.Equal(t, "1 buffer, 1.0 MiB live; peak 1 buffer, 1.0 MiB; in all 1 buffer, 1.0 MiB",
		attachedTotals(&snapshot.Snapshot{Levels: device, Peak: live, Total: live}))
}

// TestBlocksInSegments: what is held of the driver stands beside what is used of it.
func TestBlocksInSegments(t *testing.T) {
	live := mem.Tally{Count: 1, Bytes: alloc.MiB}
	blocks := &snapshot.Snapshot{Levels: snapshot.Levels{Live: live, Allocated: alloc.MiB, Reserved: 2 * alloc.MiB}, Peak: live, Total: live}
	assert.Equal(t, "1 buffer, 1.0 MiB live of 2.0 MiB reserved; peak 1 buffer, 1.0 MiB; in all 1 buffer, 1.0 MiB", attachedTotals(blocks))
}

// TestPythonFirst: of PyTorch's stacks the functions of Python come first; others keep their order.
func TestPythonFirst(t *testing.T) {
	stack := mem.Stack{
		{Function: "at::empty", File: "/torch/lib/libtorch_cpu.so"}, {Function: "THPVariable_empty", File: "/torch/lib/libtorch_python.so"},
		{Function: "layer", File: "/home/me/train.py", Line: 8}, {Function: "main", File: "main.c", Line: 2},
	}
	var out strings.Builder
	writeAttachedStack(&out, stack)
	assert.Equal(t, "layer(...)\n\t/home/me/train.py:8\nin C and C++:\nat::empty(...)\n\t/torch/lib/libtorch_cpu.so\n"+
		"THPVariable_empty(...)\n\t/torch/lib/libtorch_python.so\nmain(...)\n\tmain.c:2\n", out.String())
	out.Reset()
	writeAttachedStack(&out, stack[2:])
	assert.Equal(t, stack[2:].String(), out.String())
}

// TestOneCallStackIsOneEntry: a program's sizes vary, and its lines do not.
func TestOneCallStackIsOneEntry(t *testing.T) {
	libs := canAttach(t)
	command := leaky(t, libs)
	source := filepath.Join(t.TempDir(), "sizes.c")
	require.NoError(t, os.WriteFile(source, []byte(`
		int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long long *, unsigned long);
		int puts(const char *), fflush(void *), getchar(void);
		int main(void) {
			void *context;
			unsigned long long p;
			if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0))
				return 1;
			for (unsigned long n = 1; n <= 12; n++)
				cuMemAlloc_v2(&p, n << 20);
			puts("done");
			fflush(0);
			return getchar() == 0;
		}`), 0o600))
	text, err := exec.Command("gcc", "-g", "-O1", "-fno-omit-frame-pointer", "-o", command[0], source, "-L"+libs.Dir, "-l:libcuda.so.1").CombinedOutput()
	require.NoError(t, err, "%s", text)
	printed := attachedUntilRead(t, attachOptions{ringBuffer: alloc.MiB}, command[0])
	assert.Equal(t, 1, strings.Count(printed, "\nmain(...)"), printed)
	assert.Contains(t, printed, "\n12 buffers, 78.0 MiB, device:\n")
	assert.NotContains(t, printed, "call stacks more")
}

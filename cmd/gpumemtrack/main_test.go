package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// In a child of a test the test binary is the program itself.
func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){programName: main}) }

func TestScripts(t *testing.T) {
	tools := t.TempDir()
	emulated := buildAlloc(tools)
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", tools+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "emulated": // a GPU can be emulated here
				return emulated == nil, nil
			case "gpu": // there is a real one
				src, err := nvml.Open()
				if err == nil {
					src.Close()
				}
				return err == nil, nil
			}
			return false, fmt.Errorf("no condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"emulate":  emulate,
			"waitfile": waitFile,
			"ispng":    isPNG,
		},
	})
}

// buildAlloc builds testdata/alloc.c against the emulated driver.
func buildAlloc(dir string) error {
	libs, err := gpuemu.Build()
	if err != nil {
		return err
	}
	cmd := exec.Command("gcc", "-o", filepath.Join(dir, "alloc"), filepath.Join("testdata", "alloc.c"), "-L"+libs.Dir, "-lcuda")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("alloc.c: %w: %s", err, out)
	}
	return nil
}

// emulate puts the emulated driver under what the script runs from here on:
// emulate [NAME=VALUE...] with the GPUEMU_ variables' names.
func emulate(ts *testscript.TestScript, neg bool, args []string) {
	env, err := gpuemu.Options{State: ts.MkAbs("gpuemu.state")}.Environ()
	ts.Check(err)
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		if name == "LD_LIBRARY_PATH" || strings.HasPrefix(name, "GPUEMU_") {
			ts.Setenv(name, value)
		}
	}
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		ts.Setenv("GPUEMU_"+name, value)
	}
}

// patience is no measure of time: who waits so long fails.
const patience = 30 * time.Second

// waitFile waits until a file has text that matches: waitfile GLOB PATTERN.
func waitFile(ts *testscript.TestScript, neg bool, args []string) {
	pattern := regexp.MustCompile(args[1])
	if err := waitFor(func() bool { return pattern.MatchString(readGlob(ts.MkAbs(args[0]))) }); err != nil {
		ts.Fatalf("%s never had %s; it has: %s", args[0], args[1], readGlob(ts.MkAbs(args[0])))
	}
}

func waitFor(ok func() bool) error {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return nil
		}
	}
	return fmt.Errorf("not in %v", patience)
}

func readGlob(pattern string) string {
	names, _ := filepath.Glob(pattern)
	var all strings.Builder
	for _, name := range names {
		text, _ := os.ReadFile(name)
		all.Write(text)
	}
	return all.String()
}

func isPNG(ts *testscript.TestScript, neg bool, args []string) {
	picture, err := png.Decode(strings.NewReader(ts.ReadFile(args[0])))
	ts.Check(err)
	size := fmt.Sprintf("%dx%d", picture.Bounds().Dx(), picture.Bounds().Dy())
	if size != args[1] {
		ts.Fatalf("%s is %s, not %s", args[0], size, args[1])
	}
}

// program is gpumemtrack as a process of its own, on an emulated machine.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := gpuemu.Command(t, gpuemu.Options{Context: 256 << 20}, programPath(t), args...)
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES=0")
	return cmd
}

// programPath is where the test binary lies under the program's name.
func programPath(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), programName)
	require.NoError(t, os.Symlink(exe, name))
	return name
}

// Two real processes: what is recorded is the other's memory, to the byte.
func TestRecordsAnotherProcessesMemory(t *testing.T) {
	dir := t.TempDir()
	if err := buildAlloc(dir); err != nil {
		t.Skip(err)
	}
	samples, chart := filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "run.png")
	cmd := program(t, "record", "--interval", "20ms", "-o", samples, "-o", chart, "--", filepath.Join(dir, "alloc"), "1073741824", "7")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	const memory = 1<<30 + 256<<20 // and its context
	expected := fmt.Sprintf(`"process_memory_bytes":%d`, memory)
	seen := waitFor(func() bool { return strings.Contains(readGlob(samples), expected) })
	require.NoError(t, stdin.Close())
	err = cmd.Wait()
	require.NoError(t, seen, stderr.String())
	assert.Equal(t, 7, cmd.ProcessState.ExitCode(), "the command's: %v", err)
	assert.Equal(t, "ready\n", stdout.String(), "its output is its own")

	rec, err := nvml.ReadFile(samples)
	require.NoError(t, err)
	assert.Equal(t, float64(memory), rec.Of(nvml.ProcessMemory)[0].Max())
	assert.Equal(t, float64(memory), rec.Of(nvml.MemoryUsed)[0].Max())
	assert.Contains(t, stderr.String(), "1.2 GiB")
	assert.NotContains(t, stderr.String(), "\r", "no live line in a pipe")
	f, err := os.Open(chart)
	require.NoError(t, err)
	defer f.Close()
	_, err = png.Decode(f)
	assert.NoError(t, err)
}

// A recorder that is killed leaves a file that opens and charts.
func TestKilledRecorder(t *testing.T) {
	dir := t.TempDir()
	samples := filepath.Join(dir, "killed.jsonl")
	cmd := program(t, "record", "--interval", "10ms", "-o", samples)
	require.NoError(t, cmd.Start())
	seen := waitFor(func() bool { return strings.Count(readGlob(samples), "\n") > 10 })
	require.NoError(t, cmd.Process.Kill())
	cmd.Wait()
	require.NoError(t, seen)
	rec, err := nvml.ReadFile(samples)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, rec.Series[0].Len(), 9)
	var stdout, stderr bytes.Buffer
	assert.Zero(t, run([]string{"chart", samples}, nil, &stdout, &stderr), stderr.String())
	assert.FileExists(t, filepath.Join(dir, "killed.png"))
}

func TestEveryCommandHasAnExample(t *testing.T) {
	for _, cmd := range (&app{}).root(nil).Commands() {
		assert.NotEmpty(t, cmd.Example, cmd.Name())
		assert.NotEmpty(t, cmd.Short, cmd.Name())
	}
}

// What scripts read keeps its keys, each with its unit.
func TestJSONKeys(t *testing.T) {
	list := []nvml.Status{{Device: nvml.Device{Index: 1, UUID: "MIG-a", Name: "A", BusID: "0:1", Parent: "GPU-b", MIG: 2}}}
	list[0].Set(nvml.MemoryUsed, 5)
	list[0].Err = nvml.ErrLost
	text, err := json.Marshal(sensorsJSON("NVML", list))
	require.NoError(t, err)
	assert.JSONEq(t, `{"schema": "gpumemtrack.sensors/1", "source": "NVML", "devices": [{
		"index": 1, "uuid": "MIG-a", "name": "A", "bus_id": "0:1", "parent": "GPU-b", "mig": 2, "error": "the GPU is lost",
		"memory_scope": "device", "memory_used_bytes": 5, "memory_free_bytes": null, "memory_total_bytes": null,
		"driver_reserved_bytes": null, "utilization_percent": null, "power_watts": null, "temperature_celsius": null,
		"fan_speed_percent": null, "graphics_clock_megahertz": null, "memory_clock_megahertz": null,
		"sm_clock_megahertz": null, "video_clock_megahertz": null}]}`, string(text))

	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"estimate", "gpt2", "--json", "--fits", "24GiB"}, nil, &stdout, &stderr), stderr.String())
	var estimated map[string]any
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &estimated))
	assert.ElementsMatch(t, []string{"schema", "mode", "peak_bytes", "peak_upper_bytes", "budget_bytes", "fits", "report"},
		slices.Collect(maps.Keys(estimated)))
	for _, key := range []string{"name", "inputs", "params", "buffers", "inference", "training", "layers", "notes"} {
		assert.Contains(t, estimated["report"], key)
	}
}

func TestLiveLine(t *testing.T) {
	var stdout, stderr bytes.Buffer
	dir := t.TempDir()
	require.Zero(t, run([]string{"record", "--source", "sim", "--duration", "50ms", "--interval", "10ms", "-o", filepath.Join(dir, "a.jsonl")}, nil, &stdout, &stderr), stderr.String())
	rec, err := nvml.ReadFile(filepath.Join(dir, "a.jsonl"))
	require.NoError(t, err)
	assert.Regexp(t, `^0s  GPU 0 memory used: 450\.0 MiB now, 450\.0 MiB peak █+$`, liveLine(rec))
	assert.Equal(t, "GPU 0 mem…", fit("GPU 0 memory used", 11))
	assert.Equal(t, "▁▄█", sparkline([]float64{0, 5, 10}))
	assert.Equal(t, "▁", sparkline([]float64{0}))
	assert.Equal(t, "a\x1b", paint("a\x1b", bold, false))
	assert.Equal(t, bold+"a"+plain, paint("a", bold, true))
}

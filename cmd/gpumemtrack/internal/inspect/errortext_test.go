package inspect

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/verdict"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// oomText is an error of PyTorch.
const oomText = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free. " +
	"Including non-PyTorch memory, this process has 79.00 GiB memory in use. Of the allocated memory 78.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated.\n"

func TestExplainATextPastedOrPiped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error")
	require.NoError(t, os.WriteFile(path, []byte(oomText), 0o600))
	want := runCommand(t, "explain", path)
	assert.Contains(t, want, "line 1: PyTorch asked for 2.0 GiB on GPU 0\n")
	assert.Contains(t, want, "truly full: ")
	for _, args := range [][]string{{"explain"}, {"explain", "-"}} {
		out, errs, code := runs(t, oomText, args...)
		require.Zero(t, code, errs)
		assert.Equal(t, want, out)
		assert.Empty(t, errs, "no prompt in a pipe")
	}
	var told struct {
		Schema string
		Errors []struct {
			Verdict string
			Others  *int64 `json:"others_bytes"`
			Limit   *int64 `json:"limit_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(runCommand(t, "explain", path, "--json")), &told))
	assert.Equal(t, "gpumemtrack.explain.error/1", told.Schema)
	assert.Equal(t, "truly full", told.Errors[0].Verdict)
	assert.NotNil(t, told.Errors[0].Others)
	assert.Nil(t, told.Errors[0].Limit, "unknown is null")

	_, errs, code := runs(t, "", "explain", path, "--at", "peak")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "leave --at and --device away")
}

// TestWhatIsNotReadSaysSo: in plain words, and with the command that reads it.
func TestWhatIsNotReadSaysSo(t *testing.T) {
	dir := t.TempDir()
	for name, test := range map[string]struct{ text, command, want string }{
		"error.txt":   {oomText, "show", "error.txt is an out-of-memory error: run gpumemtrack explain "},
		"late.log":    {strings.Repeat("step\n", 1<<15) + oomText, "show", "late.log is an out-of-memory error: run gpumemtrack explain "},
		"page":        {"<!doctype html><html>", "explain", "page is a page: open it in a browser"},
		"pointer":     {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n", "chart", "run git lfs pull"},
		"notes.txt":   {"nothing to see\n", "explain", "it has no message that GPU memory ran out; explain reads dump, snapshot, "},
		"list.json":   {"[1, 2]", "explain", "help inputs"},
		"object.json": {`{"a": [1`, "explain", "help inputs"},
		"model":       {"GGUF\x03\x00\x00\x00", "chart", "is a model's file: run gpumemtrack estimate "},
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(test.text), 0o600))
		_, errs, code := runs(t, "", test.command, path)
		assert.Equal(t, cli.ExitFailed, code, name)
		assert.Contains(t, errs, test.want, name)
		for _, word := range []string{"invalid character", "unmarshal", "looking for beginning", "unexpected end of JSON"} {
			assert.NotContains(t, errs, word, name)
		}
	}
	var packed bytes.Buffer
	pack := gzip.NewWriter(&packed)
	_, err := pack.Write([]byte(strings.Repeat(oomText, 1000)))
	require.NoError(t, err)
	require.NoError(t, pack.Close())
	for _, command := range []string{"explain", "show", "chart"} {
		_, errs, code := runs(t, packed.String()[:packed.Len()/2], command, "-")
		assert.Equal(t, cli.ExitFailed, code, command)
		assert.Contains(t, errs, "torn", command)
	}

	path := filepath.Join(dir, "error.txt")
	out, errs, code := runs(t, "", "explain", path, "--as", "error")
	assert.Zero(t, code, errs)
	assert.Contains(t, out, "truly full")
	_, errs, code = runs(t, "", "explain", path, "--as", "dump")
	assert.Equal(t, cli.ExitFailed, code, errs)
	assert.Contains(t, errs, "cannot be read as a dump, as --as says")
	_, errs, code = runs(t, "", "explain", path, "--as", "gguf")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "--as gguf: explain reads dump, snapshot, ")
	_, errs, code = runs(t, "", "explain", path, "--as", "nothing")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, `there is no kind "nothing"`)
}

// TestLogsOfRanks: a folder of logs is answered with a line for each error, and the first in full.
func TestLogsOfRanks(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"rank0.log": "starting\n", "rank1.log": oomText, "rank2.log": strings.ReplaceAll(oomText, "GPU 0", "GPU 2")} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	out, errs, code := runs(t, "", "explain", dir)
	assert.Zero(t, code, errs)
	said := strings.Join(strings.Fields(out), " ")
	assert.Contains(t, said, "memory ran out in 2 of 3 files: ")
	assert.Regexp(t, `rank1.log, line \d+: PyTorch asked for .* on GPU 0: truly full .*rank2.log, line \d+: PyTorch asked for .* on GPU 2: truly full the first of them: line`, said)
	_, errs, code = runs(t, "", "explain", dir, "--json")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "--json takes one log")
}

// failing are programs that run out of memory, each for another reason.
var failing = map[verdict.Verdict]func(t *testing.T, dir string) error{
	verdict.TrulyFull: func(t *testing.T, dir string) error {
		tr := trackerOf(t, device(t, sim.Config{Memory: alloc.GiB}), dir)
		hold(t, tr, 500*alloc.MiB)
		return ask(tr, 200*alloc.MiB)
	},
	verdict.TooLarge: func(t *testing.T, dir string) error {
		return ask(trackerOf(t, device(t, sim.Config{Memory: alloc.GiB}), dir), 2*alloc.GiB)
	},
	verdict.OtherProcess: func(t *testing.T, dir string) error {
		gpu := device(t, sim.Config{Memory: 79 * alloc.GiB, Overhead: 3 * alloc.GiB})
		gpu.SetOther(60 * alloc.GiB)
		tr := trackerOf(t, gpu, dir)
		hold(t, tr, 12*alloc.GiB)
		return ask(tr, 6*alloc.GiB)
	},
	verdict.Fragmented: func(t *testing.T, dir string) error {
		tr := trackerOf(t, device(t, sim.Config{Memory: 100 * alloc.MiB, Overhead: -1}), dir)
		var large []*tracker.Buffer
		for range 8 {
			large = append(large, hold(t, tr, 12*alloc.MiB))
		}
		for _, b := range large {
			require.NoError(t, b.Free())
			hold(t, tr, 7*alloc.MiB)
		}
		return ask(tr, 30*alloc.MiB)
	},
	verdict.Elsewhere: func(t *testing.T, dir string) error {
		gpu := device(t, sim.Config{Memory: alloc.GiB, Overhead: -1})
		first := trackerOf(t, gpu, "")
		require.NoError(t, hold(t, first, 900*alloc.MiB).Free())
		return ask(trackerOf(t, gpu, dir), 500*alloc.MiB)
	},
	verdict.NoShortage: func(t *testing.T, dir string) error {
		gpu := device(t, sim.Config{Memory: alloc.GiB})
		tr := trackerOf(t, gpu, dir)
		gpu.Inject(sim.Fault{Call: "Alloc", Times: -1, Err: fmt.Errorf("refused: %w", alloc.ErrOutOfMemory)})
		return ask(tr, 20*alloc.MiB)
	},
}

func device(t *testing.T, cfg sim.Config) sim.Device {
	gpu, err := sim.New(cfg)
	require.NoError(t, err)
	return gpu
}

func trackerOf(t *testing.T, gpu sim.Device, dir string) *tracker.MemTracker {
	tr, err := tracker.New(tracker.Config{Device: gpu, Report: io.Discard, OOMDir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { tr.Close() })
	return tr
}

func hold(t *testing.T, tr *tracker.MemTracker, n alloc.Bytes) *tracker.Buffer {
	b, err := tr.AllocBytes(n, tracker.Parameter)
	require.NoError(t, err)
	return b
}

func ask(tr *tracker.MemTracker, n alloc.Bytes) error {
	_, err := tr.AllocBytes(n, tracker.Activation)
	return err
}

// TestOneVerdictEverywhere: what the error says stands in its dump, in explain and show as text and JSON, and on the page.
func TestOneVerdictEverywhere(t *testing.T) {
	for want, fail := range failing {
		t.Run(string(want), func(t *testing.T) {
			dir := t.TempDir()
			var oom *tracker.OutOfMemoryError
			require.True(t, errors.As(fail(t, dir), &oom))
			assert.Equal(t, want, verdict.OfAdvice(oom.Advice), oom.Advice)
			require.NotEmpty(t, oom.Dump)
			text, err := os.ReadFile(oom.Dump)
			require.NoError(t, err)
			says := func(of string) { assert.Contains(t, of, string(want)+": ") }
			says(string(text))

			says(runCommand(t, "explain", oom.Dump))
			says(runCommand(t, "show", oom.Dump))
			var explained struct {
				Failure struct{ Verdict verdict.Verdict }
			}
			require.NoError(t, json.Unmarshal([]byte(runCommand(t, "explain", oom.Dump, "--json")), &explained))
			assert.Equal(t, want, explained.Failure.Verdict)
			var shown struct {
				Files []struct {
					Failure struct{ Verdict verdict.Verdict }
				}
			}
			require.NoError(t, json.Unmarshal([]byte(runCommand(t, "show", oom.Dump, "--json")), &shown))
			assert.Equal(t, want, shown.Files[0].Failure.Verdict)

			page := filepath.Join(dir, "page.html")
			runCommand(t, "convert", oom.Dump, "-o", page)
			text, err = os.ReadFile(page)
			require.NoError(t, err)
			says(html.UnescapeString(string(text)))
		})
	}
}

// TestTheHolderIsBlamedIfItHoldsMost: not what holds 12 of 79 GiB of which others have 63.
func TestTheHolderIsBlamedIfItHoldsMost(t *testing.T) {
	var oom *tracker.OutOfMemoryError
	require.True(t, errors.As(failing[verdict.OtherProcess](t, t.TempDir()), &oom))
	out := runCommand(t, "explain", oom.Dump)
	assert.Contains(t, out, "No setting helps: 2.0 GiB too much. 63.0 GiB of the device are in use outside of this tracker.\n")
	assert.Contains(t, out, "in use outside of the tracker: 63.0 GiB, by this process or others: by whom is unknown\n")
	assert.NotContains(t, out, "holds 12.0 GiB")
	require.True(t, errors.As(failing[verdict.TrulyFull](t, t.TempDir()), &oom))
	assert.Contains(t, runCommand(t, "explain", oom.Dump), "holds 500.0 MiB")
}

package inspect

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
)

func engineTestLog(t *testing.T) string {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "internal", "enginelog", "testdata", "vllm.log"))
	require.NoError(t, err)
	return string(text)
}

// TestEngineLogs: show and explain read the log of an engine as a file, as standard input, and far from its beginning.
func TestEngineLogs(t *testing.T) {
	text := engineTestLog(t)
	path := filepath.Join(t.TempDir(), "vllm.log")
	for _, before := range []string{"", strings.Repeat("step 1 of 2\n", 1<<14)} {
		require.NoError(t, os.WriteFile(path, []byte(before+text), 0o600))
		out := runCommand(t, "show", path)
		assert.Contains(t, out, "vLLM 0.22.1, org/model-8b, line ")
		assert.Contains(t, out, "│ device │ 15.3 GiB │  143.4 MiB* │  4.2 GiB │ 19.7 GiB │")
		assert.NotContains(t, out, "What would help")
		out = runCommand(t, "explain", path)
		assert.Contains(t, strings.Join(strings.Fields(out), " "), "KV cache: 131,072 tokens need 16.0 GiB, and there are 4.2 GiB; 34,816 tokens would fit")
		assert.Contains(t, out, "1. Shorten the context length: --max-model-len 34816.\n")
	}
	named := strings.Replace(strings.Replace(text, "org/model-8b", "meta-llama/Llama-3.1-8B-Instruct", 1), "tensor_parallel_size=1", "tensor_parallel_size=2", 1)
	require.NoError(t, os.WriteFile(path, []byte(named), 0o600))
	assert.Contains(t, runCommand(t, "explain", path), "\nBeside the estimate: gpumemtrack estimate meta-llama/Llama-3.1-8B-Instruct --serve --seq 131072 --tp 2 --measured "+path+"\n")
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err := zip.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	for _, in := range []string{text, packed.String()} {
		for _, command := range []string{"show", "explain"} {
			var out, errs bytes.Buffer
			require.Zero(t, run([]string{command, "-", "--json"}, strings.NewReader(in), &out, &errs), "%s", errs.String())
			var answer struct {
				Schema string
				Runs   []struct {
					Engine string
					Advice []string
				}
			}
			require.NoError(t, json.Unmarshal(out.Bytes(), &answer))
			assert.Equal(t, "gpumemtrack.engine/1", answer.Schema)
			require.Len(t, answer.Runs, 1)
			assert.Equal(t, "vLLM", answer.Runs[0].Engine)
			assert.Len(t, answer.Runs[0].Advice, 4)
		}
	}
}

// TestEngineLogsOfReports: the logs that people attached to reports.
func TestEngineLogsOfReports(t *testing.T) {
	dir := outside.Folder(t, "inputs")
	for file, want := range map[string]string{
		"vllm_info.log":  "KV cache: 464,656 tokens, 56.72 requests of 8,192 tokens at once, 96.0 KiB each\n",
		"llama_load.log": "expected before loading: 9.2 GiB of the 11.8 GiB that were free\n",
		"ds.txt":         "offload_param=none, offload_optimizer=none, zero_init=1 │   6.1 GiB │ 737.3 MiB │",
		"ds_usage.log":   "│       0 B │       55.8 GiB │ 55.8 GiB │      56.0 GiB │",
	} {
		assert.Contains(t, runCommand(t, "show", filepath.Join(dir, file)), want, file)
	}
}

// TestDumpsOfXLA: the texts of a program are found beside each other; alone, one says its part.
func TestDumpsOfXLA(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "..", "internal", "xladump", "testdata")
	for _, suffix := range []string{"-buffer-assignment.txt", "-live-range.txt", "-memory-usage-report.txt", ".txt"} {
		for _, command := range []string{"show", "explain"} {
			out := runCommand(t, command, filepath.Join(dir, "jit_loss.cpu_after_optimizations"+suffix))
			assert.Contains(t, out, "jit_loss.cpu_after_optimizations, compiled by XLA\nallocated while it runs: 26.0 MiB\nlive at its peak: 24.0 MiB in 7 values\n", suffix)
			assert.Contains(t, out, "│ wrapped_tanh        │ (8.0 MiB) │ f32[2048,1024] │        train.py:6 tanh │", suffix)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "jit_loss.cpu_after_optimizations-memory-usage-report.txt"))
	require.NoError(t, err)
	var out, errs bytes.Buffer
	require.Zero(t, run([]string{"show", "-"}, bytes.NewReader(text), &out, &errs), "%s", errs.String())
	assert.Contains(t, out.String(), "standard input, compiled by XLA\nallocated while it runs: 26.0 MiB\nwhat is live at its peak is in its live-range.txt, which is not here\n")
}

// TestEnginesThatRunOutWhileServing: advice names the engine's own options, once it has a KV cache.
func TestEnginesThatRunOutWhileServing(t *testing.T) {
	const (
		weights = "(EngineCore pid=418) INFO 03-02 09:26:25 [gpu_model_runner.py:5132] Model loading took 29.08 GiB memory and 596.5 seconds\n"
		cache   = "(EngineCore pid=418) INFO 03-02 09:27:30 [gpu_worker.py:466] Available KV cache memory: 42.54 GiB\n"
		failed  = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.00 GiB is free. " +
			"Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated memory 76.00 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated.\n"
	)
	out, errs, code := runs(t, weights+cache+failed, "explain", "-")
	assert.Zero(t, code, errs)
	assert.Contains(t, out, "1. a lower --gpu-memory-utilization")
	out, errs, code = runs(t, weights+failed, "explain", "-")
	assert.Zero(t, code, errs)
	assert.NotContains(t, out, "--gpu-memory-utilization")
}

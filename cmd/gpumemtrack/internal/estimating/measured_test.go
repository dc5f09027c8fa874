package estimating

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

const recordedRun = "resnet18 --train --batch 4 --optimizer adamw "

// recordRun writes the dump of a run that takes what the estimate says, with 10 % more gradients and half of the first layer.
func recordRun(t *testing.T, e estimated) (path string) {
	tr := exporttest.New(t, tracker.Config{})
	take := func(n alloc.Bytes, kind tracker.Kind) {
		_, err := tr.AllocBytes(n, kind)
		require.NoError(t, err)
	}
	m := e.Report.Training
	take(m.Weights+m.Buffers, tracker.Parameter)
	take(m.Gradients+m.Gradients/10, tracker.Gradient)
	take(m.Optimizer, tracker.OptimizerState)
	take(m.Input, tracker.Input)
	rest := m.Saved + m.Transient
	paths := "" // of the layers; one with parts is in theirs
	for _, row := range e.Report.Layers {
		paths += row.Path + "\n"
	}
	for _, pass := range []string{"forward", "backward"} {
		step := tr.Section(pass)
		for _, row := range e.Report.Layers {
			layer := tr.Section(row.Path)
			if n := row.Allocated; !strings.Contains(paths, row.Path+".") && n > 0 && pass == "forward" {
				if row.Path == "conv1" {
					n /= 2
				}
				b, err := tr.AllocBytes(n, tracker.Activation)
				require.NoError(t, err)
				require.NoError(t, b.Free())
			}
			layer.End()
		}
		step.End()
	}
	take(rest, tracker.Activation)
	path = filepath.Join(t.TempDir(), "run.dump.json")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, tr.Dump().WriteJSON(f))
	return path
}

// The estimate stands beside a recorded run: the peaks with their bounds, what they are for, and the layers.
func TestEstimateBesideARecordedRun(t *testing.T) {
	e := estimateJSON(t, recordedRun)
	path := recordRun(t, e)
	var out, stderr bytes.Buffer
	require.Zero(t, run(strings.Fields("estimate --json "+recordedRun+"--measured "+path), nil, &out, &stderr), stderr.String())
	var got struct {
		Measured struct {
			File, Device string
			Rows         []struct {
				Of, Path string
				Estimate alloc.Bytes `json:"estimate_bytes"`
				Lower    alloc.Bytes `json:"lower_bytes"`
				Upper    alloc.Bytes `json:"upper_bytes"`
				Measured alloc.Bytes `json:"measured_bytes"`
				Off      float64
			}
		}
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	assert.Equal(t, path, got.Measured.File)
	off, layers := map[string]float64{}, map[string]float64{}
	for _, r := range got.Measured.Rows {
		if off[r.Of] = r.Off; r.Of == "layer" {
			layers[r.Path] = r.Off
		}
		if r.Of == "requested" || r.Of == "allocated" || r.Of == "reserved" {
			assert.Greater(t, r.Upper, r.Estimate)
			assert.Positive(t, r.Lower)
		}
	}
	assert.Equal(t, e.Peak, got.Measured.Rows[0].Estimate)
	assert.InDelta(t, 0, off["weights"], 1e-9)
	assert.InDelta(t, 0, off["optimizer"], 1e-9)
	assert.InDelta(t, 0.1, off["gradients"], 0.001)
	assert.InDelta(t, 0, off["activations"], 1e-9)
	assert.InDelta(t, -0.5, layers["conv1"], 0.001)
	assert.InDelta(t, 0, layers["layer4.1.conv2"], 1e-9, "the sections of the backward pass are not the layer's")
	assert.Greater(t, len(layers), 50)

	out.Reset()
	require.Zero(t, run(strings.Fields("estimate "+recordedRun+"--measured "+path), nil, &out, &stderr), stderr.String())
	text := out.String()
	for _, want := range []string{"requested by tensors", "allocated in blocks", "reserved by the allocator", "+10.0 %", "conv1", "-50.0 %", "The 10 layers that are off by most"} {
		assert.Contains(t, text, want)
	}
}

// A real run beside the command of its settings is met, and beside one that leaves them out it is not: then the
// command says what it assumes. TinyLlama ran in float32, with a bitsandbytes that kept inputs.
func TestEstimateBesideTinyLlama(t *testing.T) {
	recording := filepath.Join(outside.Folder(t, "recordings"), "tinyllama-qlora-4bit.pickle.gz")
	type compared struct {
		Rows []struct {
			Of  string
			Off float64
		}
		Notes []string
	}
	beside := func(flags string) compared {
		var stdout, stderr bytes.Buffer
		args := strings.Fields("estimate --json tinyllama-1.1b-chat-v1.0 --batch 1 --seq 1000 --optimizer none --lora 16 --qlora " + flags)
		require.Zero(t, run(append(args, "--measured", recording), nil, &stdout, &stderr), stderr.String())
		var got struct{ Measured compared }
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &got))
		require.Len(t, got.Measured.Rows, 3)
		return got.Measured
	}
	said := beside("--dtype float32 --lora-targets q_proj,v_proj --lora-dropout 0.05 --pytorch 2.1 --bitsandbytes 0.41.0 --zero-grad first --hold-output in-pass")
	for _, r := range said.Rows {
		assert.Less(t, math.Abs(r.Off), 0.03, r.Of)
	}
	assert.NotContains(t, strings.Join(said.Notes, "\n"), "other settings")
	assert.Contains(t, beside("").Notes, "the run may have had other settings than the command, which assumes --dtype bfloat16; "+
		"it leaves open: --pytorch, --transformers, --bitsandbytes, --hold-output")
}

// A file that does not tell a peak, and an estimate without an input, are refused.
func TestEstimateBesideWhatTellsNothing(t *testing.T) {
	weights := filepath.Join(t.TempDir(), "model.safetensors")
	header := `{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`
	noEvents := filepath.Join(t.TempDir(), "snapshot.json")
	require.NoError(t, os.WriteFile(noEvents, []byte(`{"segments":[{"device":0,"address":4096,"total_size":2097152,"blocks":[
		{"address":4096,"size":2097152,"requested_size":2097152,"state":"active_allocated"}]}],"device_traces":[[]]}`), 0o600))
	require.NoError(t, os.WriteFile(weights, append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+"1234"...), 0o600))
	for args, want := range map[string]string{
		"estimate resnet18 --train --measured " + noEvents:                                                     "its peak is not known: it has no events",
		"estimate " + weights + " --measured ../../../../tracker/export/torch/testdata/pytorch0.pickle --json": "--measured needs the input of the run",
		"estimate resnet18 --train --measured ../../../../estimate/testdata/vgg19.json":                        "not a snapshot",
		"estimate resnet18 --train --measured " + filepath.Join(t.TempDir(), "nothing.dump.json"):              "no such file",
	} {
		var out, stderr bytes.Buffer
		assert.NotZero(t, run(strings.Fields(args), nil, &out, &stderr), args)
		assert.Contains(t, stderr.String(), want, args)
	}
}

// The estimate stands beside what an engine logged: what it loads, and what a token takes, since its cache is as large as
// the device allows.
func TestEstimateBesideAnEnginesLog(t *testing.T) {
	log := `(EngineCore_DP0 pid=9) INFO 10-01 10:00:00 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', tokenizer='x', max_seq_len=32768
(EngineCore_DP0 pid=9) INFO 10-01 10:00:10 [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 3.1 seconds
(EngineCore_DP0 pid=9) INFO 10-01 10:00:20 [gpu_worker.py:298] Available KV cache memory: 19.37 GiB
(EngineCore_DP0 pid=9) INFO 10-01 10:00:21 [kv_cache_utils.py:1087] GPU KV cache size: 158,656 tokens
`
	path := filepath.Join(t.TempDir(), "engine.log")
	for _, of := range []struct {
		name, log, rows, note string
	}{
		{"pool", log, "weights -0.0 %, KV cache, a token +0.0 %", "the KV cache holds 158,656 tokens, and the estimate is for 8,192: what a token takes is compared"},
		{"same", strings.Replace(log, "19.37 GiB\n", "1.00 GiB\n", 1) + "GPU KV cache size: 8,192 tokens\n", "weights -0.0 %, KV cache +0.0 %", ""},
		{"unknown", strings.Join(strings.SplitAfter(log, "\n")[:3], ""), "weights -0.0 %", "the KV cache of 19.4 GiB is not compared: the log does not say for how many tokens it is"},
		{"starts", log + log, "weights -0.0 %, KV cache, a token +0.0 %", "the log has 2 starts: this is the last"},
	} {
		require.NoError(t, os.WriteFile(path, []byte(of.log), 0o600))
		var out, stderr bytes.Buffer
		require.Zero(t, run([]string{"estimate", "llama-3.1-8b", "--serve", "--seq", "8192", "--batch", "1", "--json", "--measured", path}, nil, &out, &stderr), stderr.String())
		var got struct {
			Measured measured
		}
		require.NoError(t, json.Unmarshal(out.Bytes(), &got))
		assert.Equal(t, "vLLM 0.11.0, meta-llama/Llama-3.1-8B-Instruct", got.Measured.Device)
		var rows struct {
			Measured struct {
				Rows []struct {
					Of  string
					Off float64
				}
			}
		}
		require.NoError(t, json.Unmarshal(out.Bytes(), &rows))
		var said []string
		for _, r := range rows.Measured.Rows {
			said = append(said, r.Of)
			assert.InDelta(t, 0, r.Off, 0.005, of.name)
		}
		for i, part := range strings.Split(of.rows, " %, ") {
			name, _, _ := strings.Cut(part, " -")
			name, _, _ = strings.Cut(name, " +")
			assert.Equal(t, name, said[i], of.name)
		}
		if of.note != "" {
			assert.Contains(t, got.Measured.Notes, of.note, of.name)
		}
	}
}

package estimate_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// measurements is what testdata/torch/measure.py writes.
type measurements struct {
	Torch  string
	Device string
	Models map[string]measurement
}

type measurement struct {
	Params      int64
	ParamBytes  alloc.Bytes `json:"param_bytes"`
	Buffers     int64
	BufferBytes alloc.Bytes `json:"buffer_bytes"`
	LeavesInput []int       `json:"leaves_input"`
	Leaves      []leaf
	Runs        []measuredRun
}

type measuredRun struct {
	Input         []int
	DType         string
	Checkpointed  bool
	Saved         alloc.Bytes `json:"saved_bytes"`
	CPUInference  alloc.Bytes `json:"cpu_inference_peak_bytes"`
	CPUTraining   alloc.Bytes `json:"cpu_training_peak_bytes"`
	CUDAInference alloc.Bytes `json:"cuda_inference_peak_bytes"`
	CUDATraining  alloc.Bytes `json:"cuda_training_peak_bytes"`
}

// leaf is the output of a module without parts: its name and shape.
type leaf struct {
	path  string
	shape alloc.Shape
}

func (l *leaf) UnmarshalJSON(data []byte) error {
	pair := []any{&l.path, &l.shape}
	return json.Unmarshal(data, &pair)
}

func readMeasurements(t *testing.T, file string) measurements {
	data, err := os.ReadFile("testdata/torch/" + file)
	if os.IsNotExist(err) {
		t.Skipf("no %s: run testdata/torch/measure.py on a machine that has what it measures", file)
	}
	require.NoError(t, err)
	var m measurements
	require.NoError(t, json.Unmarshal(data, &m))
	require.NotEmpty(t, m.Models)
	return m
}

// tiny are the models that measure.py builds in small.
var tiny = map[string]family.Transformer{
	"llama-tiny":   {Vocab: 1000, Hidden: 256, FFN: 688, Blocks: 4, Heads: 8, KVHeads: 2},
	"mixtral-tiny": {Vocab: 1000, Hidden: 256, FFN: 512, Blocks: 2, Heads: 8, KVHeads: 2, Mixture: family.Mixture{Experts: 8, TopK: 2}},
	"qwen2-tiny":   {Vocab: 1000, Hidden: 256, FFN: 688, Blocks: 2, Heads: 8, KVHeads: 2, Attention: family.Attention{QKVBias: true}, Tied: true},
	"gemma-tiny":   {Family: family.Gemma, Vocab: 1000, Hidden: 256, FFN: 1024, Blocks: 2, Heads: 8, KVHeads: 1, HeadSize: 64, Tied: true},
	"qwen3-tiny":   {Vocab: 1000, Hidden: 256, FFN: 688, Blocks: 2, Heads: 8, KVHeads: 2, HeadSize: 64, Attention: family.Attention{QKNorm: layer.NormHeads}},
	"qwen3-moe-tiny": {Vocab: 1000, Hidden: 256, FFN: 688, Blocks: 3, Heads: 8, KVHeads: 2, HeadSize: 64, Attention: family.Attention{QKNorm: layer.NormHeads},
		Mixture: family.Mixture{DenseBlocks: 1, Experts: 8, TopK: 2, ExpertFFN: 192, Router: layer.RoundedRouter}},
	"deepseek-v3-tiny": {Vocab: 1000, Hidden: 256, FFN: 688, Blocks: 2, Heads: 8, Mixture: family.Mixture{DenseBlocks: 1, Experts: 8, TopK: 2, ExpertFFN: 192, SharedFFN: 192, Router: layer.SigmoidRouter}, Attention: family.Attention{Latent: &layer.LatentAttention{QueryRank: 96, KVRank: 64, NopeSize: 16, RopeSize: 16, ValueSize: 32}}},
	"gpt-oss-tiny":     {Family: family.GPTOSS, Vocab: 1000, Hidden: 256, FFN: 192, Blocks: 2, Heads: 8, KVHeads: 2, HeadSize: 64, Mixture: family.Mixture{Experts: 8, TopK: 2}},
	"olmo2-tiny":       {Family: family.OLMo2, Vocab: 1000, Hidden: 256, FFN: 688, Blocks: 2, Heads: 8, KVHeads: 2},
	"gemma2-tiny": {Family: family.Gemma2, Vocab: 1000, Hidden: 256, FFN: 1024, Blocks: 2, Heads: 8, KVHeads: 2, HeadSize: 64, Tied: true,
		Attention: family.Attention{CappedScores: true}, Head: family.Head{CappedLogits: true}},
	"gemma3-tiny": {Family: family.Gemma2, Vocab: 1000, Hidden: 256, FFN: 1024, Blocks: 2, Heads: 8, KVHeads: 2, HeadSize: 64, Tied: true,
		Attention: family.Attention{QKNorm: layer.NormHeads}},
	"phi-tiny":  {Family: family.Phi, Vocab: 1000, Hidden: 256, FFN: 1024, Blocks: 2, Heads: 8},
	"phi3-tiny": {Family: family.Phi3, Vocab: 1000, Hidden: 256, FFN: 688, Blocks: 2, Heads: 8, KVHeads: 2},
}

// single are the layers that measure.py measures by themselves.
var single = map[string]tape.Layer{
	"rnn":                layer.RNN{In: 64, Hidden: 96, Layers: 2},
	"gru":                layer.GRU{In: 64, Hidden: 96, Bidirectional: true},
	"lstm":               layer.LSTM{In: 64, Hidden: 96, Layers: 2},
	"lstm-bidirectional": layer.LSTM{In: 64, Hidden: 96, Bidirectional: true},
}

func measuredLayers(t *testing.T, name string) []tape.Layer {
	if l, ok := single[name]; ok {
		return []tape.Layer{l}
	}
	if small, ok := tiny[name]; ok {
		return small.Layers()
	}
	m, err := zoo.ByName(name)
	require.NoError(t, err)
	return layer.From(m.Layers)
}

func inputOf(shape []int) estimate.Option {
	if len(shape) == 2 {
		return estimate.Tokens(shape[0], shape[1])
	}
	return estimate.InputShape(shape...)
}

// options are those under which a run is to be estimated.
func (r measuredRun) options() []estimate.Option {
	opts := []estimate.Option{inputOf(r.Input), estimate.OnCPU(), estimate.Train("adam")}
	if d, err := alloc.ParseDType(r.DType); err == nil {
		opts = append(opts, estimate.Precision(d))
	}
	if r.Checkpointed {
		opts = append(opts, estimate.Checkpointed("model.layers.*"))
	}
	return opts
}

func (r measuredRun) String() string {
	name := fmt.Sprintf("batch=%d", r.Input[0])
	if r.Checkpointed {
		name += ",checkpointed"
	}
	if r.DType != "" {
		name += "," + r.DType
	}
	return name
}

func TestTorchParametersAndShapes(t *testing.T) {
	for name, want := range readMeasurements(t, "cpu.json").Models {
		t.Run(name, func(t *testing.T) {
			r, err := estimate.Model(layer.Public(measuredLayers(t, name)), inputOf(want.LeavesInput), estimate.OnCPU())
			require.NoError(t, err)
			assert.Equal(t, want.Params, r.Params.Count)
			assert.Equal(t, want.ParamBytes, r.Params.Bytes)
			assert.Equal(t, want.Buffers, r.Buffers.Count)
			assert.Equal(t, want.BufferBytes, r.Buffers.Bytes)
			assert.Equal(t, single[name] == nil, len(want.Leaves) > 0, "recurrent modules return more than a tensor")
			for _, w := range want.Leaves {
				assert.True(t, slices.ContainsFunc(r.Layers, func(row estimate.Row) bool {
					return row.Path == w.path && slices.Equal(row.Output, w.shape)
				}), "%s returns %v", w.path, w.shape)
			}
		})
	}
}

func TestTorchKeptForBackward(t *testing.T) {
	for name, want := range readMeasurements(t, "cpu.json").Models {
		for _, run := range want.Runs {
			t.Run(fmt.Sprintf("%s/%v", name, run), func(t *testing.T) {
				r := model(t, layer.Public(measuredLayers(t, name)), run.options()...)
				assert.InEpsilon(t, float64(run.Saved), float64(r.Retained), 0.01, "measured %d, estimated %d", run.Saved, r.Retained)
			})
		}
	}
}

// deviations are the ends of what was measured over what was estimated, less 1:
// the bounds of the estimate.
type deviations struct{ below, above float64 }

func (d *deviations) add(measured, estimated alloc.Bytes) {
	off := float64(measured)/float64(estimated) - 1
	d.below, d.above = max(d.below, -off), max(d.above, off)
}

// bounds is the deviations in thousandths, rounded up.
func (d deviations) bounds() bounds {
	up := func(v float64) float64 { return math.Ceil(v*1000-1e-9) / 1000 }
	return bounds{Below: max(0, up(d.below)), Above: max(0, up(d.above))}
}

// besides is what a memory holds that the profiler does not see: what was there
// before the step.
func besides(m estimate.Memory) alloc.Bytes { return m.Weights + m.Buffers + m.Optimizer + m.Input }

// compared are the deviations over some models, and a report on one of them.
type compared struct {
	saved, inference, training deviations
	report                     *estimate.Report
}

func compare(t *testing.T, names func(string) bool) compared {
	var c compared
	for name, want := range readMeasurements(t, "cpu.json").Models {
		if !names(name) {
			continue
		}
		for _, run := range want.Runs {
			r := model(t, layer.Public(measuredLayers(t, name)), run.options()...)
			c.saved.add(run.Saved, r.Retained)
			c.inference.add(run.CPUInference, r.Inference.Peak.Bytes-besides(r.Inference))
			c.training.add(run.CPUTraining, r.Training.Peak.Bytes-besides(r.Training))
			t.Logf("%s %v: inference %+.4f, training %+.4f", name, run,
				float64(run.CPUInference)/float64(r.Inference.Peak.Bytes-besides(r.Inference))-1, float64(run.CPUTraining)/float64(r.Training.Peak.Bytes-besides(r.Training))-1)
			if len(r.Inputs[0]) != 4 { // convolutions have wider bounds in inference
				c.report = r
			}
		}
	}
	t.Logf("saved %+v, inference %+v, training %+v", c.saved, c.inference, c.training)
	require.NotNil(t, c.report)
	return c
}

func (c compared) check(t *testing.T) {
	written := writtenOf(t, c.report)
	for _, m := range []struct {
		found  deviations
		memory estimate.Memory
		bounds bounds
	}{{c.inference, c.report.Inference, written.Inference.Bounds}, {c.training, c.report.Training, written.Training.Bounds}} {
		want := m.found.bounds()
		uncertain := float64(m.memory.Peak.Bytes - besides(m.memory)) // the rest is exact
		assert.InDelta(t, min(uncertain, want.Below*uncertain+float64(cpuWorkspaces/2))/float64(m.memory.Peak.Bytes), m.bounds.Below, 1e-5)
		assert.InDelta(t, (want.Above*uncertain+float64(cpuWorkspaces))/float64(m.memory.Peak.Bytes), m.bounds.Above, 1e-5)
	}
}

// cpuWorkspaces is what the upper bounds of peaks on the CPU have besides the deviations.
const cpuWorkspaces = 256 * alloc.KiB

func isRecurrent(name string) bool { return single[name] != nil }

func TestTorchBounds(t *testing.T) {
	c := compare(t, func(name string) bool { return !isRecurrent(name) })
	c.check(t)
	assert.Equal(t, c.saved.bounds(), writtenOf(t, c.report).RetainedBounds)
	for _, d := range []deviations{c.inference, c.training} {
		assert.Less(t, max(d.below, d.above), 0.06)
	}
}

func TestTorchBoundsOfRecurrentLayers(t *testing.T) {
	c := compare(t, isRecurrent)
	c.check(t)
	assert.Zero(t, c.saved, "what they keep is known to the byte")
	assert.Contains(t, c.report.String(), "recurrent layers")
}

func TestTorchCUDAPeaks(t *testing.T) {
	for name, want := range readMeasurements(t, "cuda.json").Models {
		for _, run := range want.Runs {
			r, err := estimate.Model(layer.Public(measuredLayers(t, name)), inputOf(run.Input), estimate.Train("adam"))
			require.NoError(t, err)
			assert.InEpsilon(t, float64(run.CUDAInference), float64(r.Inference.Peak.Bytes), 0.05, "%s, inference %v", name, run.Input)
			assert.InEpsilon(t, float64(run.CUDATraining), float64(r.Training.Peak.Bytes), 0.05, "%s, training %v", name, run.Input)
		}
	}
}

// written is what only a report's JSON has.
type written struct {
	RetainedBounds      bounds          `json:"retained_bounds"`
	Activations         estimate.Amount `json:"activations"`
	Inference, Training struct {
		Bounds bounds `json:"bounds"`
	}
}

// bounds is how far a value may be off, as fractions of it.
type bounds struct{ Below, Above float64 }

func writtenOf(t *testing.T, r *estimate.Report) (w written) {
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &w))
	return w
}

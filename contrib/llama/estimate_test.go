//go:build !windows

package memtrack_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	memtrack "github.com/gpumemtrack/gpumemtrack/contrib/llama"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// measurer names the environment's variable that makes this program the one that measures models.
const measurer = "GPUMEMTRACK_TEST_MEASURE"

// served is how a model is served.
type served struct {
	Context, Batch, Slots int // of all slots; --ubatch-size; --parallel
	Flash, Unified        bool
	K, V                  llama.GGMLType
	Rollback              int  // states of recurrent layers that are kept besides the last ones
	Predicts              bool // the context of the block that predicts
}

// toMeasure is a model and how it is served.
type toMeasure struct {
	Path     string
	Settings []served
}

// sizes are what llama.cpp takes for a context.
type sizes struct {
	KV, Compute alloc.Bytes // the compute buffer is that of the GPU if there is one
	GPU         bool
	Err         string
}

// measure prints the sizes of contexts of a model.
func measure(folder, request string) error {
	var m toMeasure
	if err := json.Unmarshal([]byte(request), &m); err != nil {
		return err
	}
	if err := llama.Load(folder); err != nil {
		return err
	}
	if os.Getenv("GPUMEMTRACK_VERBOSE") == "" {
		llama.LogSet(llama.LogSilent())
	}
	llama.Init()
	dev, err := sim.New(sim.Config{})
	if err != nil {
		return err
	}
	tr, err := tracker.New(tracker.Config{Device: dev})
	if err != nil {
		return err
	}
	lib, err := memtrack.Open(filepath.Join(folder, "libllama.so"), tr)
	if err != nil {
		return err
	}
	params := llama.ModelDefaultParams()
	params.LoadMode, params.NoAlloc, params.LoadMTP = llama.LoadModeNone, 1, 1
	model, err := llama.ModelLoadFromFile(m.Path, params)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	for _, s := range m.Settings {
		p := llama.ContextDefaultParams()
		p.NCtx, p.NUbatch, p.NBatch, p.NSeqMax = uint32(s.Context), uint32(s.Batch), uint32(max(2048, s.Batch)), uint32(s.Slots)
		p.SwaFull = 0 // as in the programs of llama.cpp
		p.TypeK, p.TypeV, p.FlashAttentionType = s.K, s.V, llama.FlashAttentionTypeDisabled
		if s.Flash {
			p.FlashAttentionType = llama.FlashAttentionTypeEnabled
		}
		p.NRsSeq = uint32(s.Rollback)
		if s.Predicts {
			p.CtxType = llama.ContextTypeMTP
		}
		if p.KVUnified = 0; s.Unified {
			p.KVUnified = 1
		}
		ctx, err := llama.InitFromModel(model, p)
		if err != nil || ctx == 0 {
			if err := out.Encode(sizes{Err: fmt.Sprint("no context: ", err)}); err != nil {
				return err
			}
			continue
		}
		if err := lib.AddContext(uintptr(ctx), "context"); err != nil {
			return err
		}
		var is sizes
		for a := range tr.Snapshot().Allocations() {
			onGPU := a.Memory == alloc.DeviceMemory
			switch {
			case a.Kind == "KV":
				is.KV += a.Requested
			case onGPU && !is.GPU: // what the host has beside a GPU does not count
				is.Compute, is.GPU = a.Requested, true
			case onGPU == is.GPU:
				is.Compute += a.Requested
			}
		}
		if err := errors.Join(lib.Remove(uintptr(ctx)), llama.Free(ctx), out.Encode(is)); err != nil {
			return err
		}
	}
	return nil
}

// measured starts a process that measures a model.
func measured(t *testing.T, folder string, m toMeasure) []sizes {
	request, err := json.Marshal(m)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), measurer+"="+string(request), "GPUMEMTRACK_LLAMACPP="+folder)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if !assert.NoError(t, err, m.Path) {
		return nil
	}
	var all []sizes
	for in := json.NewDecoder(bytes.NewReader(out)); in.More(); {
		var s sizes
		require.NoError(t, in.Decode(&s))
		all = append(all, s)
	}
	return all
}

// settings are those with which each model is served.
var settings = []served{
	{4096, 512, 1, true, false, f16, f16, 0, false},
	{4096, 512, 1, false, false, f16, f16, 0, false},
	{8192, 2048, 1, true, false, f16, f16, 0, false},
	{32768, 512, 4, true, false, f16, f16, 0, false},
	{32768, 512, 4, true, true, f16, f16, 0, false},
	{8192, 128, 1, true, false, q8, q8, 0, false},
	{2048, 512, 4, false, false, f16, f16, 0, false},
	{16384, 1024, 2, true, true, q8, q4, 0, false},
	{16384, 512, 1, true, true, f16, f16, 3, false},
	{16384, 512, 1, true, true, f16, f16, 3, true},
}

// The types of keys and values.
const f16, q8, q4 = llama.GGMLType(1), llama.GGMLType(8), llama.GGMLType(2)

var typeNames = map[llama.GGMLType]string{f16: "", q8: "q8_0", q4: "q4_0"}

// estimated returns what the estimate says of a context: its keys and values, its compute buffer, and the bounds of that.
func estimated(t *testing.T, path string, s served, backend string) (kv, compute, least, most alloc.Bytes) {
	file, err := checkpoint.ReadFile(path)
	require.NoError(t, err)
	cache, err := file.Cache(s.Slots, s.Context/s.Slots)
	require.NoError(t, err)
	cache.Keys, cache.Values = typeNames[s.K], typeNames[s.V]
	by := llamacpp.Server{Slots: "apart", Batch: s.Batch, FlashAttention: s.Flash, Backend: backend, Drafts: s.Rollback, Predicts: s.Predicts}
	if s.Unified {
		by.Slots = "unified"
	}
	opt, err := file.Served(cache, by)
	if !assert.NoError(t, err) {
		return 0, 0, 0, 0
	}
	r, err := file.Report(opt)
	require.NoError(t, err)
	m := r.Inference
	rest := m.Peak.Bytes - m.Transient // weights, keys and values are exact
	return m.Cache, m.Transient, m.Footprint.Allocated.Lower - rest, m.Footprint.Allocated.Upper - rest
}

// tally counts how estimates compare with what llama.cpp allocates.
type tally struct {
	settings, exact, inside, near int
	worst                         float64 // the largest deviation of a compute buffer
}

// add adds a setting.
func (c *tally) add(kv, compute, least, most alloc.Bytes, is sizes) {
	off := float64(compute)/float64(is.Compute) - 1
	c.settings++
	if is.KV == kv {
		c.exact++
	}
	if least <= is.Compute && is.Compute <= most {
		c.inside++
	}
	if math.Abs(off) <= 0.03 {
		c.near++
	}
	if math.Abs(off) > math.Abs(c.worst) {
		c.worst = off
	}
}

func (c *tally) String() string {
	return fmt.Sprintf("%d settings: keys and values exact in %d; compute buffer inside the bounds in %d, within 3 %% in %d, %+.2f %% at most", c.settings, c.exact, c.inside, c.near, 100*c.worst)
}

// TestEstimate holds the estimate to what llama.cpp itself allocates for models of many architectures, each served in several
// ways: keys and values, and the compute buffer on the CPU.
func TestEstimate(t *testing.T) {
	folder := libraries(t)
	var all tally
	only := os.Getenv("GPUMEMTRACK_ONLY")
	for _, m := range smallModels {
		if only != "" && only != m.architecture {
			continue
		}
		path := m.write(t, t.TempDir())
		var of tally
		for i, is := range measured(t, folder, toMeasure{path, settings}) {
			if is.Err != "" {
				t.Logf("%s %d: llama.cpp refuses it: %s", m.architecture, i, is.Err)
				continue
			}
			kv, compute, least, most := estimated(t, path, settings[i], "cpu")
			if without := settings[i]; without.Predicts { // the estimate is of both contexts, and what was measured of the second
				without.Predicts = false
				mainKV, main, mainLeast, mainMost := estimated(t, path, without, "cpu")
				kv, compute, least, most = kv-mainKV, compute-main, least-mainLeast, most-mainMost
			}
			of.add(kv, compute, least, most, is)
			all.add(kv, compute, least, most, is)
			t.Logf("%s %d: keys and values %d (%d allocated), compute buffer %d (%d allocated)", m.architecture, i, kv, is.KV, compute, is.Compute)
		}
		t.Logf("coverage of llama.cpp, %s: %v", m.architecture, &of)
	}
	t.Logf("coverage of llama.cpp, %d architectures: %v", len(smallModels), &all)
	assert.Equal(t, all.settings, all.exact, "keys and values")
	assert.Equal(t, all.settings, all.inside, "compute buffer inside the bounds")
	assert.GreaterOrEqual(t, float64(all.near), 0.95*float64(all.settings), "compute buffer within 3 %")
}

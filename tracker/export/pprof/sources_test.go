package pprof_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const packages = "/opt/conda/lib/python3.12/site-packages/"

// jaxStack is a call stack of a JAX profile, innermost first.
var jaxStack = mem.Stack{
	{Function: "__call__", File: packages + "jax/_src/interpreters/pxla.py", Line: 395},
	{Function: "_pjit_call_impl_python", File: packages + "jax/_src/pjit.py", Line: 1500},
	{Function: "bind", File: packages + "jax/_src/core.py", Line: 500},
	{Function: "__call__", File: packages + "flax/linen/linear.py", Line: 271},
	{Function: "__call__", File: "/home/me/model.py", Line: 31},
	{Function: "<module>", File: "/home/me/train.py", Line: 9},
}

// jaxProfile is a profile as jax.profiler.save_device_memory_profile writes it.
func jaxProfile() *profile.Profile {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "allocations", Unit: "count"}, {Type: "space", Unit: "bytes"}},
		Mapping:    []*profile.Mapping{{ID: 1, File: "/usr/bin/python3.12"}},
	}
	var stack []*profile.Location
	for i, f := range jaxStack {
		fn := &profile.Function{ID: uint64(i + 1), Name: f.Function, Filename: f.File}
		l := &profile.Location{ID: uint64(i + 1), Mapping: p.Mapping[0], Line: []profile.Line{{Function: fn, Line: int64(f.Line)}}}
		p.Function, p.Location, stack = append(p.Function, fn), append(p.Location, l), append(stack, l)
	}
	for _, kind := range []string{"buffer", "buffer", "executable"} {
		label := map[string][]string{"kind": {kind}}
		if kind == "buffer" {
			label["device"] = []string{"cuda:0"}
		}
		p.Sample = append(p.Sample, &profile.Sample{Location: stack, Value: []int64{1, 4096}, Label: label})
	}
	return p
}

func TestJAXNamesTheFileOfTheUser(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, jaxProfile().Write(&b))
	u, err := pprof.Read(&b)
	require.NoError(t, err)
	assert.Equal(t, "python3.12", u.Origin.Program)
	require.Len(t, u.Rows, 3)
	var sum mem.Tally
	for _, r := range u.Rows {
		assert.Equal(t, jaxStack, r.Stack, "all frames, in their order")
		assert.Equal(t, "model.py:31 __call__", r.CallSite.String())
		assert.Equal(t, "__call__ <- <module>", r.Stack.Path().String())
		sum = sum.Add(r.Live)
	}
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 3 * 4096}, sum, "an executable is no buffer")

	p := profileOf(t, u)
	require.NoError(t, p.CheckValid())
	assert.Equal(t, []string{"inuse_objects", "inuse_space"}, []string{p.SampleType[0].Type, p.SampleType[1].Type}, "JAX knows no totals")
	assert.Len(t, p.SampleType, 2)
	assert.Equal(t, "python3.12", p.Mapping[0].File)
	assert.Equal(t, `_pjit_call_impl_python|bind`, p.DropFrames, "__call__ is the user's too")
}

// backward are stacks of a backward pass of PyTorch and of the forward pass before it.
func backward() *export.Usage {
	capture := mem.Stack{
		{Function: "torch::unwind::unwind()", File: "??"},
		{Function: "torch::cuda::(anonymous namespace)::gather_with_cpp()", File: "memory_snapshot.cpp"},
		{Function: "at::TensorBase at::detail::_empty_generic<long>(c10::ArrayRef<long>, c10::Allocator*)"},
	}
	u := new(export.Usage)
	for _, rest := range []mem.Stack{
		{{Function: "torch::autograd::generated::BmmBackward0::apply(std::vector<at::Tensor>&&)", File: "??"}, {Function: "torch::autograd::Node::operator()(std::vector<at::Tensor>&&)", File: "??"}},
		{{Function: "forward", File: packages + "torch/nn/modules/linear.py", Line: 125}, {Function: "_call_impl", File: packages + "torch/nn/modules/module.py", Line: 1}, {Function: "forward", File: "/home/me/net.py", Line: 7},
			{Function: "_call_impl", File: packages + "torch/nn/modules/module.py", Line: 1}, {Function: "step", File: "/home/me/train.py", Line: 20}},
	} {
		stack := append(capture[:3:3], rest...)
		u.Rows = append(u.Rows, export.Row{Stack: stack, CallSite: stack.CallSite(), Device: "cuda:0", Totals: snapshot.Totals{Live: mem.Tally{Count: 1, Bytes: 1 << 20}}})
	}
	return u
}

func TestFramesWithinASiteAreDroppedByPprofOnly(t *testing.T) {
	u := backward()
	assert.Equal(t, "autograd BmmBackward0", u.Rows[0].CallSite.String())
	assert.Equal(t, "net.py:7 forward", u.Rows[1].CallSite.String())

	p := profileOf(t, u)
	drop := regexp.MustCompile("^(" + p.DropFrames + ")$")
	for name, dropped := range map[string]bool{
		"torch::unwind::unwind": true, "torch::cuda::(anonymous namespace)::gather_with_cpp": true, "at::TensorBase at::detail::_empty_generic<long>": true,
		"forward": false, "_call_impl": false, "step": false, "torch::autograd::generated::BmmBackward0::apply": false, "torch::autograd::Node::operator()": false,
	} {
		assert.Equal(t, dropped, drop.MatchString(name), name)
	}
	assert.Len(t, p.Sample[0].Location, 5, "the file has them all")
	assert.Equal(t, "torch::unwind::unwind()", p.Sample[0].Location[0].Line[0].Function.Name)

	path := filepath.Join(t.TempDir(), "torch.pb.gz")
	var b bytes.Buffer
	require.NoError(t, pprof.WriteUsage(&b, u))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
	top := goToolPprof(t, "-top", path)
	assert.NotContains(t, top, "unwind")
	assert.Regexp(t, `1MB .*BmmBackward0`, top)
}

// TestProfilesOfManyPartsAreRefused: parts without a byte take memory nevertheless.
func TestProfilesOfManyPartsAreRefused(t *testing.T) {
	sampleType := "\x0a\x04\x08\x01\x10\x02\x32\x00\x32\x05space\x32\x05bytes"
	for name, part := range map[string]string{
		"samples": "\x12\x00", "locations": "\x22\x00", "functions": "\x2a\x00", "strings": "\x32\x00",
		"labels": "\x12\x80\x08" + strings.Repeat("\x1a\x00", 512), "lines": "\x22\x80\x08" + strings.Repeat("\x22\x00", 512),
	} {
		text := sampleType + strings.Repeat(part, 8<<20/len(part))
		before := allocated()
		_, err := pprof.Read(strings.NewReader(text))
		assert.ErrorIs(t, err, bounded.ErrTooLarge, name)
		assert.Less(t, allocated()-before, uint64(128<<20), name)
	}
}

// profileOf returns what WriteUsage writes.
func profileOf(t *testing.T, u *export.Usage) *profile.Profile {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, pprof.WriteUsage(&b, u))
	p, err := profile.Parse(&b)
	require.NoError(t, err)
	return p
}

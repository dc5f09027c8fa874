package estimating

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cases"
)

var update = flag.Bool("update", false, "write today's answers into docs/estimate-cases.csv")

// Each row that has a command is what that command answers. TestPublished in estimate has the others.
func TestCommandsOfCases(t *testing.T) {
	t.Chdir("../../../../docs")
	n := cases.Run(t, "estimate-cases.csv", *update, func(c cases.Case) bool { return c["command"] != "" }, commanded)
	assert.GreaterOrEqual(t, n, 195)
}

// memory is the part that the mode asks about: JSON does not tell a Report which.
func (e estimated) memory() estimate.Memory {
	if e.Mode == "train" {
		return e.Report.Training
	}
	return e.Report.Inference
}

// commanded is what the command answers. The parts of a peak have no bounds of their own: a tenth is taken.
func commanded(t *testing.T, c cases.Case) estimate.Value {
	m := estimateJSON(t, c["command"]).memory()
	part := func(n alloc.Bytes) estimate.Value {
		return estimate.Value{Bytes: n, Lower: n - n/10, Upper: n + n/10}
	}
	f, ok := map[string]estimate.Value{
		"allocated": m.Footprint.Allocated, "reserved": m.Footprint.Reserved, "device": m.Footprint.Device,
		"weights": part(m.Weights), "keys and values": part(m.Keys + m.Values), "states": part(m.Cache - m.Keys - m.Values), "compute buffer": part(m.Transient),
	}[c["quantity"]]
	require.True(t, ok, c["quantity"])
	return f
}

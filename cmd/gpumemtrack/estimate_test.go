package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// estimateJSON runs the command and returns what it prints with --json.
func estimateJSON(t *testing.T, args string) estimated {
	t.Helper()
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(strings.Fields("estimate --json "+args), nil, &stdout, &stderr), stderr.String())
	var e estimated
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &e))
	return e
}

// Each way of training changes the figures as it should.
func TestEstimateWaysOfTraining(t *testing.T) {
	const base = "gpt2 --train --batch 4 --seq 64 --optimizer adamw --dtype float32 "
	usual := estimateJSON(t, base)
	assert.Zero(t, usual.Host)
	adam := usual.Report.Training.Optimizer
	for flags, check := range map[string]func(t *testing.T, e estimated){
		"--optimizer lion": func(t *testing.T, e estimated) { assert.Equal(t, adam/2, e.Report.Training.Optimizer) },
		"--optimizer muon": func(t *testing.T, e estimated) {
			assert.Greater(t, e.Report.Training.Optimizer, adam/2)
			assert.Less(t, e.Report.Training.Optimizer, adam)
		},
		"--optimizer-in-backward": func(t *testing.T, e estimated) { assert.Less(t, e.Reserved, usual.Reserved) },
		"--offload optimizer": func(t *testing.T, e estimated) {
			assert.Zero(t, e.Report.Training.Optimizer)
			assert.Greater(t, e.Host, adam)
		},
		"--offload parameters":   func(t *testing.T, e estimated) { assert.Zero(t, e.Report.Training.Weights) },
		"--optimizer-form fused": func(t *testing.T, e estimated) { assert.Less(t, e.Upper, usual.Upper) },
		"--zero-grad kept":       func(t *testing.T, e estimated) { assert.GreaterOrEqual(t, e.Reserved, usual.Reserved) },
		"--pytorch 1.10":         func(t *testing.T, e estimated) { assert.NotEqual(t, usual.Peak, e.Peak) },
		"--accumulate 4":         func(t *testing.T, e estimated) { assert.GreaterOrEqual(t, e.Peak, usual.Peak) },
		"--checkpoint *.h.*":     func(t *testing.T, e estimated) { assert.Less(t, e.Report.Kept, usual.Report.Kept) },
		"--autocast bf16":        func(t *testing.T, e estimated) { assert.NotEqual(t, usual.Report.Kept, e.Report.Kept) },
		"--replicas 8 --zero 3": func(t *testing.T, e estimated) {
			assert.Less(t, e.Report.Training.Weights, usual.Report.Training.Weights/7)
		},
		"--optimizer adam8bit": func(t *testing.T, e estimated) { assert.Less(t, e.Report.Training.Optimizer, adam/3) },
		"--lora 8 --qlora --lora-targets c_attn,c_proj": func(t *testing.T, e estimated) {
			assert.Less(t, e.Report.Training.Weights, usual.Report.Training.Weights)
			assert.Less(t, e.Report.Training.Optimizer, adam/50)
		},
	} {
		t.Run(flags, func(t *testing.T) {
			e := estimateJSON(t, base+flags)
			check(t, e)
			assert.GreaterOrEqual(t, e.Needs, e.Peak)
			assert.GreaterOrEqual(t, e.DeviceUpper, e.Device)
			assert.Greater(t, e.Device, e.Reserved)
			assert.Positive(t, alloc.Bytes(e.Reserved))
		})
	}
}

func TestEstimateFlagsThatMakeNoSense(t *testing.T) {
	for flags, want := range map[string]string{
		"--offload gradients":                    "say one of optimizer, parameters",
		"--zero-grad never":                      "say one of first, backward, kept",
		"--pytorch two":                          "say its version as 2.4",
		"--pytorch 2":                            "say its version as 2.4",
		"--optimizer adagrad":                    "lion, muon",
		"--optimizer-in-backward --accumulate 2": "cannot add up 2 micro-batches",
	} {
		var stdout, stderr bytes.Buffer
		assert.NotZero(t, run(strings.Fields("estimate gpt2 --train "+flags), nil, &stdout, &stderr), flags)
		assert.Contains(t, stderr.String(), want)
		assert.Empty(t, stdout.String())
	}
}

//go:build linux

package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
)

// TestRun: everything is known of the emulated driver, and the text says it.
func TestRun(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Name: "Test GPU", Memory: 1 << 30, Context: 100 << 20}) {
		return
	}
	var out strings.Builder
	require.NoError(t, run(&out))
	for _, line := range []string{
		`device 0 +Test GPU, GPU-e3a10000-0000-4000-8000-000000000000, 1\.0 GiB`,
		`device +Test GPU 0`,
		`the context, the difference +100\.0 MiB`,
		`in the ledger, 200 tensors +766\.8 MiB`,
		`what cuMemGetInfo says they took +916\.0 MiB`,
		`untracked: used now, less with the context, less reserved +0\.0 MiB`,
		`untracked, as the tracker says: context, libraries, others +100\.0 MiB`,
		`this process, as NVML says +1016\.0 MiB`,
		`32\.0 MiB +\S+s +\S+s +\d+ +\S+s +\S+s`,
		`1\.0 GiB +the device has not so much free`,
		`4\.0 KiB beside a live one +\S+s +\S+s +\d+ +\S+s +\S+s`,
		`processes +\S+s`,
		`100 ms of nothing +\S+s +\S+s`,
		`GPU 0 memory used +100\.0 MiB +612\.0 MiB +512\.0 MiB +\d+`,
		`GPU 0 pid \d+ +100\.0 MiB +612\.0 MiB +512\.0 MiB +\d+`,
		`256\.0 MiB allocated +100\.0 MiB +100\.0 MiB +100\.0 MiB`,
		`filled by the device +356\.0 MiB +356\.0 MiB +356\.0 MiB`,
		`freed +100\.0 MiB +100\.0 MiB +100\.0 MiB`,
	} {
		assert.Regexp(t, `(?m)^`+line+`$`, out.String())
	}
}

// TestWithoutNVML leaves out what only NVML can say, and says so.
func TestWithoutNVML(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Fail: []gpuemu.Fault{{Function: "nvmlInit_v2", From: 1, Onward: true, Code: 999}}}) {
		return
	}
	v, err := openView()
	require.Error(t, err)
	var out strings.Builder
	require.NoError(t, memory(&out, v))
	assert.Regexp(t, `the context, the difference\tunknown: `, out.String())
	assert.Contains(t, out.String(), "what cuMemGetInfo says they took\t916.0 MiB\n")
	require.Error(t, queries(io.Discard, v))
}

func TestASectionThatFails(t *testing.T) {
	var out strings.Builder
	refused := errors.New("refused")
	require.ErrorIs(t, section(&out, "First", func(io.Writer) error { return refused }), refused)
	require.Equal(t, "\nFirst\nFAILED: refused\n", out.String())
}

//go:build linux

package libcuda_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/libcuda"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
)

func TestMain(m *testing.M) {
	_, err := libcuda.Open()
	os.Exit(gpuemu.Main(m, err == nil))
}

func TestUUIDs(t *testing.T) {
	const first, second = "GPU-e3a10000-0000-4000-8000-000000000000", "GPU-e3a10000-0000-4000-8000-000000000001"
	for name, test := range map[string]struct {
		options gpuemu.Options
		visible string
		want    []string
		fails   string
	}{
		"two":         {gpuemu.Options{Devices: 2}, "0,1", []string{first, second}, ""},
		"in reverse":  {gpuemu.Options{Devices: 2}, "1,0", []string{second, first}, ""},
		"none":        {gpuemu.Options{Devices: -1}, "0", nil, ""},
		"none to see": {gpuemu.Options{}, "", nil, ""},
		"a failure":   {gpuemu.Options{Fail: []gpuemu.Fault{{Function: "cuDeviceGetUuid_v2", From: 1, Code: 719}}}, "0", nil, "cuDeviceGetUuid_v2: error 719"},
	} {
		t.Run(name, func(t *testing.T) {
			if gpuemu.Rerun(t, test.options, "CUDA_VISIBLE_DEVICES="+test.visible) {
				return
			}
			got, err := libcuda.UUIDs()
			if test.fails != "" {
				require.ErrorContains(t, err, test.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

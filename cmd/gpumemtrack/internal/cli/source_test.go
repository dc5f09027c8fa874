package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// TestMinIntervalIsTheRecorders: commands refuse what a recorder refuses, before they start anything.
func TestMinIntervalIsTheRecorders(t *testing.T) {
	source, err := OpenSource("sim")
	require.NoError(t, err)
	_, err = nvml.NewRecorder(nvml.Config{Source: source, Interval: MinInterval})
	require.NoError(t, err)
	_, err = nvml.NewRecorder(nvml.Config{Source: source, Interval: MinInterval - time.Nanosecond})
	require.ErrorContains(t, err, MinInterval.String())
}

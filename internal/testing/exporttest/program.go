// Package exporttest runs a small training program on a simulated GPU, for the
// tests of the exporters and of what serves them.
package exporttest

import (
	"io"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Clock is a time that passes a millisecond at each look. Any goroutine may look.
func Clock() func() time.Time {
	begun := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	var looks atomic.Int64
	return func() time.Time { return begun.Add(time.Duration(looks.Add(1)) * time.Millisecond) }
}

// New returns a tracker over a simulated GPU of 4 GiB, closed with the test.
func New(t testing.TB, cfg tracker.Config) *tracker.MemTracker {
	t.Helper()
	if cfg.Device == nil {
		device, err := sim.New(sim.Config{Memory: 4 * alloc.GiB})
		require.NoError(t, err)
		cfg.Device = device
	}
	cfg.Report = io.Discard
	if cfg.Clock == nil {
		cfg.Clock = Clock()
	}
	tr, err := tracker.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { tr.Close() })
	return tr
}

// Train runs a program that uses every part of a tracker: parameters that stay,
// activations that come and go, a cache that is cleared, memory of others, a
// refusal, marks. It leaves these buffers live:
//
//	2 parameters   (64, 3, 3, 3)    float32    13.5 KiB  loadWeights
//	1 input        (32, 3, 64, 64)  float32     1.5 MiB  loadBatch
//	1 tensor       (1048576)        uint8       1.0 MiB  register, at 0x7000000
func Train(t testing.TB, tr *tracker.MemTracker) {
	t.Helper()
	tr.Track()
	loadWeights(t, tr)
	tr.Track()
	for range 3 {
		step(t, tr)
	}
	tr.Track()
	_, err := tr.ClearCache()
	require.NoError(t, err)
	loadBatch(t, tr)
	register(t, tr)
	_, err = tr.Alloc(alloc.Shape{64, 1 << 30}, alloc.Uint8, tracker.Temporary)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	tr.Track()
}

func loadWeights(t testing.TB, tr *tracker.MemTracker) {
	for range 2 {
		take(t, tr, tracker.Parameter, 64, 3, 3, 3)
	}
}

func step(t testing.TB, tr *tracker.MemTracker) {
	var activations []*tracker.Buffer
	for layer := range 4 {
		activations = append(activations, take(t, tr, tracker.Activation, 32, 64>>layer, 32, 32))
	}
	for _, a := range activations {
		require.NoError(t, a.Free())
	}
}

func loadBatch(t testing.TB, tr *tracker.MemTracker) {
	take(t, tr, tracker.Input, 32, 3, 64, 64)
}

func register(t testing.TB, tr *tracker.MemTracker) {
	require.NoError(t, tr.Register(0x7000000, alloc.DeviceMemory, alloc.Shape{1 << 20}, alloc.Uint8, tracker.Unspecified))
}

func take(t testing.TB, tr *tracker.MemTracker, kind tracker.Kind, dims ...int) *tracker.Buffer {
	b, err := tr.Alloc(dims, alloc.Float32, kind)
	require.NoError(t, err)
	return b
}

var line = regexp.MustCompile(`(\.(go|s)):\d+`)

// Neutral returns text without what differs from one machine to the next, or
// with every change of a test: the folder of this module, and lines.
func Neutral(text string) string {
	_, here, _, _ := runtime.Caller(0)
	module := filepath.Dir(filepath.Dir(filepath.Dir(here)))
	text = strings.ReplaceAll(text, module, "/src/gpumemtrack")
	return line.ReplaceAllString(text, "$1:0")
}

package attach

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/ledger"

	pages "github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

var _ pages.Source = (*Source)(nil)

func TestWaitingForMarks(t *testing.T) {
	s := newScript(t)
	s.give("cuMemAlloc_v2", 0x100, 10)
	source := s.w.Sources()[0]
	nobodyWaits, stop := context.WithCancel(t.Context())
	stop()
	_, err := source.WaitMark(nobodyWaits, 0)
	require.ErrorIs(t, err, context.Canceled)

	got := make(chan int)
	go func() {
		m, err := source.WaitMark(t.Context(), 0)
		assert.NoError(t, err)
		got <- m.Seq
	}()
	source.Track()
	assert.Equal(t, 1, <-got)

	s.w.apply(&event.Event{PID: nobodysPID, TID: 1, Phase: event.Exited, Args: [6]uint64{1}, Time: s.time + 1})
	m, err := source.WaitMark(t.Context(), 0)
	require.NoError(t, err, "the marks stay")
	assert.Equal(t, 1, m.Seq)
	_, err = source.WaitMark(t.Context(), 1)
	require.ErrorIs(t, err, alloc.ErrClosed)
}

func TestNamesOfSources(t *testing.T) {
	s := newScript(t)
	for range 2 {
		s.give("cuMemAlloc_v2", 0x100, 10)
		s.give("cuMemHostAlloc", 0x200, 10)
		s.w.apply(&event.Event{PID: nobodysPID, TID: 1, Phase: event.Exited, Args: [6]uint64{1}, Time: s.time + 1})
	}
	var names []string
	for _, source := range s.w.Sources() {
		names = append(names, source.Name())
	}
	assert.ElementsMatch(t, []string{"1073741824-gpu", "1073741824-host", "1073741824-gpu-2", "1073741824-host-2"}, names)
}

// learns is a Driver that knows the devices from the second question on.
type learns struct {
	ledger.Driver
	asked int
}

func (*learns) Memory(int, int) (used, total alloc.Bytes, err error) { return 0, 0, ledger.ErrNoDriver }

func (l *learns) UUID(_, ordinal int) (string, error) {
	if l.asked++; l.asked == 1 {
		return "", ledger.ErrNoDriver
	}
	return fmt.Sprintf("GPU-%d", ordinal), nil
}

// TestUUID: the driver is asked until it has answered, and what it said stays when the process has ended.
func TestUUID(t *testing.T) {
	s := newScript(t)
	s.give("cuMemAlloc_v2", 0x100, 10)
	source, driver := s.w.Sources()[0], &learns{}
	source.device, s.w.driver = 3, driver
	assert.Empty(t, source.LightSnapshot().UUID)
	assert.Equal(t, "GPU-3", source.LightSnapshot().UUID)
	s.w.apply(&event.Event{PID: nobodysPID, TID: 1, Phase: event.Exited, Args: [6]uint64{1}, Time: s.time + 1})
	assert.Equal(t, "GPU-3", source.Snapshot().UUID)
	assert.Equal(t, 2, driver.asked)
}

func TestDumpHasWarnings(t *testing.T) {
	s := newScript(t)
	s.give("cuMemAlloc_v2", 0x100, 10)
	s.w.accuracy.Warn(time.Second, "the reason for it")
	var text bytes.Buffer
	require.NoError(t, s.w.Sources()[0].Dump().WriteJSON(&text))
	record, err := snapshot.ReadDump(&text)
	require.NoError(t, err)
	assert.Regexp(t, `^attach; from .* the reason for it$`, record.Reason)
}

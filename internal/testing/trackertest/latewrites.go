package trackertest

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Writer is a device on which a test queues work that writes.
type Writer struct {
	alloc.Device
	Streams [2]alloc.Stream
	// Write queues work that takes a millisecond and then writes to n bytes at p.
	Write   func(s alloc.Stream, p alloc.Ptr, n alloc.Bytes) error
	Advance func(by time.Duration)
}

// LateWrites tests Config.FindLateWrites: programs that tell of their streams, and those that do not.
func LateWrites(t *testing.T, w Writer) {
	const size = 3 * alloc.MiB
	for name, test := range map[string]struct {
		free         func(b *tracker.Buffer) error
		late, reused bool
	}{
		"waited":       {func(b *tracker.Buffer) error { w.Advance(time.Second); return b.Free() }, false, true},
		"told":         {func(b *tracker.Buffer) error { return b.FreeOn(w.Streams[1]) }, false, true},
		"recorded":     {func(b *tracker.Buffer) error { return orFree(b, b.RecordStream(w.Streams[1])) }, false, true},
		"forgotten":    {(*tracker.Buffer).Free, true, true},
		"not used yet": {(*tracker.Buffer).Free, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			tr, err := tracker.New(tracker.Config{
				Device: w.Device, Report: io.Discard, FindLateWrites: true, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			require.NoError(t, err)
			b := takeLate(t, tr, w.Streams[0], size)
			require.NoError(t, w.Write(w.Streams[1], b.Ptr()+1000, 10))
			require.NoError(t, test.free(b))
			if test.reused {
				again := takeLate(t, tr, w.Streams[0], size)
				require.NoError(t, w.Write(w.Streams[0], again.Ptr(), size), "what is live may be written to")
				require.NoError(t, again.Free())
			}
			err = tr.Close()
			if !test.late {
				require.NoError(t, err)
				assert.Empty(t, tr.LateWrites())
				assert.Empty(t, log.String())
				return
			}
			require.Len(t, tr.LateWrites(), 1)
			require.ErrorIs(t, err, tr.LateWrites()[0])
			next := "and is not allocated again:"
			if test.reused {
				next = `and allocated again at \S+ trackertest\.takeLate:`
			}
			assert.Regexp(t, fmt.Sprintf(`^work wrote to 10 B at %v on .+ after its free: the memory was allocated at \S+ trackertest\.takeLate, `+
				`freed at \S+ trackertest\.LateWrites\S*, %s `, b.Ptr()+1000, next), err.Error())
			assert.Contains(t, log.String(), "work wrote to 10 B")
		})
	}
}

func orFree(b *tracker.Buffer, err error) error {
	if err != nil {
		return err
	}
	return b.Free()
}

func takeLate(t *testing.T, tr *tracker.MemTracker, s alloc.Stream, n alloc.Bytes) *tracker.Buffer {
	b, err := tr.AllocOn(s, alloc.Shape{int(n)}, alloc.Uint8, tracker.Activation)
	require.NoError(t, err)
	return b
}

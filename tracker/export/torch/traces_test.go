package torch

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// memories is a program with buffers of two types of memory, one of them in a section.
func memories(t *testing.T) *snapshot.Dump {
	tr := exporttest.New(t, tracker.Config{Device: simulated(t, sim.Config{Memory: alloc.GiB})})
	require.NoError(t, tr.Register(0x1000, alloc.DeviceMemory, alloc.Shape{3, 3}, alloc.Float32, tracker.Input))
	require.NoError(t, tr.Register(0x2000, alloc.ManagedMemory, alloc.Shape{3, 4}, alloc.Float32, tracker.Parameter))
	tr.Do("step", func() {
		require.NoError(t, tr.Register(0x3000, alloc.DeviceMemory, alloc.Shape{3, 5}, alloc.Float32, tracker.Gradient))
	})
	return tr.Dump()
}

// traced are the events of the first device that a dump is written as.
func traced(t *testing.T, r *snapshot.Dump) []*dict {
	t.Helper()
	value, err := unpickle(bytes.NewReader(write(t, r)))
	require.NoError(t, err)
	var out []*dict
	for _, e := range must[*sequence](t, value.(*dict), "device_traces").items[0].(*sequence).items {
		out = append(out, e.(*dict))
	}
	return out
}

// notes are the texts beside the events of an action; "-" of an event without one.
func notes(t *testing.T, r *snapshot.Dump, action string) (out []string) {
	for _, e := range traced(t, r) {
		if must[string](t, e, "action") != action {
			continue
		}
		if _, ok := e.get("user_metadata"); !ok {
			out = append(out, "-")
			continue
		}
		out = append(out, must[string](t, e, "user_metadata"))
	}
	return out
}

// TestWhatTheViewerSaysOfABuffer is what is known of it and no more.
func TestWhatTheViewerSaysOfABuffer(t *testing.T) {
	assert.Equal(t, []string{"Input (3, 3) float32", "Parameter (3, 4) float32 of managed memory", "Gradient (3, 5) float32 in step"}, notes(t, memories(t), "alloc"))

	alloc := `{"action": "alloc", "addr": 1048576, "size": 2097000, "time_us": 1%s}`
	for more, want := range map[string]string{
		"":                                "-",
		`, "category": "parameter"`:       "Parameter",
		`, "user_metadata": "mine"`:       "mine",
		`, "category": "unknown"`:         "-",
		`, "category": "autograd_detail"`: "autograd_detail",
		`, "category": "parameter", "user_metadata": "mine"`: "Parameter: mine",
	} {
		c := parsed(t, oneBlock(""), bytesOf(alloc, more), "")
		assert.Equal(t, []string{want}, notes(t, c.Dump, "alloc"), more)
	}
}

func bytesOf(format, more string) string {
	return string(bytes.Replace([]byte(format), []byte("%s"), []byte(more), 1))
}

// TestMarksComeBack with their numbers. The last event is none: it is there for the page, which needs one of category "unknown".
func TestMarksComeBack(t *testing.T) {
	r := trained(t, tracker.Config{})
	want := []string{"mark 1", "mark 2", "mark 3", "mark 4", "-"}
	assert.Equal(t, want, notes(t, r, "snapshot"))
	c, err := read(bytes.NewReader(write(t, r)))
	require.NoError(t, err)
	var marks []int
	for e := range c.Dump.Events() {
		if e.Action == mem.Marked {
			marks = append(marks, e.Mark)
		}
	}
	assert.Equal(t, []int{1, 2, 3, 4}, marks)
}

// TestADescriptionIsWrittenOnce, however many buffers have it: in files with millions of events it is most of the text.
func TestADescriptionIsWrittenOnce(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	for range 100 {
		_, err := tr.Alloc(alloc.Shape{17, 19}, alloc.Float32, "My kind")
		require.NoError(t, err)
	}
	file := write(t, tr.Dump())
	assert.Equal(t, 1, bytes.Count(file, []byte("My kind (17, 19) float32")), "of events")
	assert.Equal(t, 1, bytes.Count(file, []byte("\x07My kind\x94")), "of blocks")
}

// TestFreeMemoryAtAnError is what the driver said then, if all others used as much as at the end, and 0 if the device is unknown.
func TestFreeMemoryAtAnError(t *testing.T) {
	for _, overhead := range []alloc.Bytes{-1, 10 * alloc.MiB} {
		tr := exporttest.New(t, tracker.Config{Device: simulated(t, sim.Config{Memory: 100 * alloc.MiB, Overhead: overhead}), OOMDir: t.TempDir()})
		_, err := tr.AllocBytes(20*alloc.MiB, tracker.Input)
		require.NoError(t, err)
		_, err = tr.AllocBytes(90*alloc.MiB, tracker.Input)
		var failed *alloc.OutOfMemoryError
		require.ErrorAs(t, err, &failed)
		b, err := tr.AllocBytes(30*alloc.MiB, tracker.Input)
		require.NoError(t, err)
		require.NoError(t, b.Free())
		r := tr.Dump()
		free := func() int64 {
			for _, e := range traced(t, r) {
				if must[string](t, e, "action") == "oom" {
					return must[int64](t, e, "device_free")
				}
			}
			return -1
		}
		require.Equal(t, 80*alloc.MiB-max(0, overhead), failed.Free)
		assert.EqualValues(t, failed.Free, free())
		r.Snapshot.DriverUsed, r.Snapshot.DriverTotal = -1, -1
		assert.Zero(t, free())
	}
}

// TestAnArenaLivesAsLongAsWhatLiesInIt: the page fails on a block in no segment. Memory that another owns gets a segment of its own, which
// stays until the last buffer in it is freed.
func TestAnArenaLivesAsLongAsWhatLiesInIt(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{NoCache: true})
	arena, inner := alloc.Ptr(0x10000), alloc.Ptr(0x11000)
	require.NoError(t, tr.Register(arena, alloc.DeviceMemory, alloc.Shape{0x4000}, alloc.Uint8, tracker.Input))
	require.NoError(t, tr.Register(inner, alloc.DeviceMemory, alloc.Shape{0x100}, alloc.Uint8, tracker.Input))
	_, err := tr.Unregister(arena)
	require.NoError(t, err)
	_, err = tr.Unregister(inner)
	require.NoError(t, err)
	r := tr.Dump()
	requireViewable(t, write(t, r))
	var actions []string
	for _, e := range traced(t, r) {
		actions = append(actions, must[string](t, e, "action"))
	}
	assert.Equal(t, []string{"segment_alloc", "alloc", "alloc", "free_requested", "free_completed", "free_requested", "free_completed", "segment_free", "snapshot"}, actions)
}

// TestPoolsThatOnlyTheEndNames: an event about a segment does not say whether it is for small requests, or its pool before PyTorch 2.12.
func TestPoolsThatOnlyTheEndNames(t *testing.T) {
	const segment = `{"action": "segment_alloc", "addr": 1048576, "size": 2097152, "time_us": 1}`
	c := parsed(t, `{"device": 0, "address": 1048576, "total_size": 2097152, "segment_type": "small", "segment_pool_id": [0, 7], "blocks": [{"size": 2097152, "state": "inactive"}]}`, segment, "")
	again, err := read(bytes.NewReader(write(t, c.Dump)))
	require.NoError(t, err)
	require.Len(t, again.Dump.Snapshot.Segments, 1)
	assert.Equal(t, "small", again.Dump.Snapshot.Segments[0].Pool)
	assert.Equal(t, "0,7", again.Dump.Snapshot.Segments[0].Private)
}

// TestBuffersOfNothing have no block: the page draws blocks by their size.
func TestBuffersOfNothing(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{NoCache: true})
	require.NoError(t, tr.Register(0x1000, alloc.DeviceMemory, alloc.Shape{0}, alloc.Uint8, tracker.Input))
	require.NoError(t, tr.Register(0x2000, alloc.DeviceMemory, alloc.Shape{0x100}, alloc.Uint8, tracker.Input))
	require.NoError(t, tr.Register(0x2080, alloc.DeviceMemory, alloc.Shape{0}, alloc.Uint8, tracker.Input))
	value, err := unpickle(bytes.NewReader(write(t, tr.Dump())))
	require.NoError(t, err)
	for _, s := range elements(t, value.(*dict), "segments") {
		for _, b := range elements(t, s, "blocks") {
			assert.Positive(t, must[int64](t, b, "size"))
		}
	}
}

// TestNumbersAreShort: the page reads files of hundreds of megabytes, most of which are numbers.
func TestNumbersAreShort(t *testing.T) {
	for n, want := range map[int64]int{0: 2, 1: 2, 255: 2, 256: 3, 65535: 3, 65536: 5, 1<<31 - 1: 5, -1: 5, -1 << 31: 5, 1 << 31: 7, 1<<39 - 1: 7, 1 << 39: 8, 1<<62 + 1: 10} {
		var b bytes.Buffer
		p := newPickler(&b)
		p.int(n)
		require.NoError(t, p.close())
		assert.Equal(t, want, b.Len()-3, "%d", n) // without the protocol and the end
	}
}

// TestTextsOfAnyLength: one of up to 255 bytes has a length of one byte.
func TestTextsOfAnyLength(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 257, 70_000} {
		text := string(bytes.Repeat([]byte("x"), n))
		var b bytes.Buffer
		p := newPickler(&b)
		p.text(text)
		require.NoError(t, p.close())
		got, err := unpickle(&b)
		require.NoError(t, err)
		assert.True(t, text == got, "%d", n)
	}
}

package kineto_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/kineto"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func open(t testing.TB, name string) io.Reader {
	text, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return bytes.NewReader(text)
}

func read(t *testing.T, text string) *snapshot.Dump {
	t.Helper()
	d, _, err := kineto.Read(strings.NewReader(text))
	require.NoError(t, err)
	return d
}

// TestFile: the device's name and memory, what is reserved, and no lines.
func TestFile(t *testing.T) {
	d, _, err := kineto.Read(open(t, "kineto.pt.trace.json"))
	require.NoError(t, err)
	s := d.Snapshot
	assert.Equal(t, "NVIDIA A100-SXM4-40GB", s.Device)
	assert.Equal(t, alloc.Bytes(42405855232), s.DriverTotal)
	assert.Equal(t, 2*alloc.MiB, s.Reserved)
	assert.Equal(t, mem.Tally{}, s.Live)
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 512}, s.Peak)
	var said []string
	for e := range d.Events() {
		said = append(said, e.String())
	}
	assert.Equal(t, []string{"alloc 512 B at 0x22238", "free 512 B at 0x22238"}, said)
}

// TestProfilerOfPyTorch holds what is read of a profile that PyTorch 2.15 wrote to the totals that it has itself.
func TestProfilerOfPyTorch(t *testing.T) {
	const name = "torch2.15-cpu.pt.trace.json.gz"
	d, _, err := kineto.Read(open(t, name))
	require.NoError(t, err)
	r, err := bounded.NewReader(open(t, name), 0)
	require.NoError(t, err)
	var trace struct {
		Events []struct {
			Name string      `json:"name"`
			TS   json.Number `json:"ts"`
			Args struct {
				Allocated alloc.Bytes `json:"Total Allocated"`
			} `json:"args"`
		} `json:"traceEvents"`
	}
	require.NoError(t, json.NewDecoder(r).Decode(&trace))
	most, last := alloc.Bytes(0), alloc.Bytes(0)
	for _, e := range trace.Events {
		if e.Name == "[memory]" {
			most, last = max(most, e.Args.Allocated), e.Args.Allocated
		}
	}
	s := d.Snapshot
	assert.Equal(t, most, s.Peak.Bytes)
	assert.Equal(t, last, s.Live.Bytes)
	assert.Equal(t, "cpu", s.Device)
	assert.Equal(t, 2026, s.Time.Year())
	sites := make(map[string]alloc.Bytes)
	for site := range s.CallSites() {
		sites[site.CallSite.String()] += site.Live.Bytes
	}
	assert.Equal(t, 3*alloc.MiB, sites["prof.py:11 <module>"], "the tensors that the script keeps")
	assert.Len(t, sites, 2)
}

// event is a [memory] event.
func event(ts string, tid int, addr uint64, bytes int64, kind, id int) string {
	return fmt.Sprintf(`{"ph":"i","name":"[memory]","pid":1,"tid":%d,"ts":%s,"args":{"Bytes":%d,"Addr":%d,"Device Id":%d,"Device Type":%d}}`, tid, ts, bytes, addr, id, kind)
}

func called(cat, name string, ts, dur string, tid int) string {
	return fmt.Sprintf(`{"ph":"X","cat":%q,"name":%q,"pid":1,"tid":%d,"ts":%s,"dur":%s}`, cat, name, tid, ts, dur)
}

func traceOf(events ...string) string {
	return `{"schemaVersion":1,"baseTimeNanoseconds":1790857026000000000,"traceEvents":[` + strings.Join(events, ",") + `]}`
}

// TestStacks: the calls around an event on its thread, in any order in the file, innermost first.
func TestStacks(t *testing.T) {
	d := read(t, traceOf(
		event("15.5", 1, 1, 100, 1, 0), event("25", 1, 2, 200, 1, 0), event("15", 2, 3, 300, 1, 0),
		called("cpu_op", "aten::empty", "15", "1", 1),
		called("python_function", "train.py(12): forward", "12", "5", 1),
		called("python_function", "torch/nn/modules/module.py(1511): _call_impl", "11", "10", 1),
		called("python_function", "train.py(30): main", "10", "20", 1),
		called("python_function", "<built-in method apply of Function object at 0x7f2c>", "24", "2", 1),
		called("user_annotation", "step", "10", "20", 1),
	))
	stacks := make(map[string]string)
	for site := range d.Snapshot.CallSites() {
		var names []string
		for _, f := range site.Stack {
			names = append(names, f.Function)
		}
		stacks[strings.Join(names, " < ")] = site.CallSite.String()
	}
	assert.Equal(t, map[string]string{
		"": "unknown",
		"aten::empty < forward < _call_impl < main":  "train.py:12 forward",
		"<built-in method apply of Function> < main": "train.py:30 main",
	}, stacks)
}

// TestDevices: each device has a dump, and the CPU's memory is that of no device.
func TestDevices(t *testing.T) {
	d := read(t, traceOf(event("1", 1, 1, 100, 1, 0), event("2", 1, 1, 300, 1, 1), event("3", 1, 1, 5000, 0, -1)))
	assert.Equal(t, 1, d.Snapshot.Ordinal)
	assert.Equal(t, "cuda", d.Snapshot.Device)
	require.Len(t, d.Others, 1)
	assert.Equal(t, alloc.Bytes(100), d.Others[0].Snapshot.Live.Bytes)
	start := time.Unix(0, 1790857026000000000).UTC()
	assert.Equal(t, start.Add(2*time.Microsecond), d.Snapshot.Time)
	assert.Equal(t, "xpu", read(t, traceOf(event("1", 1, 1, 1, 12, 0))).Snapshot.Device)
}

func TestRefused(t *testing.T) {
	_, _, err := kineto.Read(strings.NewReader(`{"schemaVersion":1,"traceEvents":[{"name":"x"}]}`))
	require.ErrorIs(t, err, kineto.ErrNoMemory)
	_, _, err = kineto.Read(strings.NewReader(`{"schemaVersion":1,"traceEvents":[{"name":"x"}`))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	for _, text := range []string{"[[1,2],[3,4]]", "[[1,2,3,4],[[0]]]", "[]", `[["a"]]`, "[[1,2,3,99]]", "[[1,2,1e300,0]]"} {
		_, err = kineto.ReadTimeline(strings.NewReader(text))
		require.Error(t, err, text)
	}
}

// TestTimelines reads both forms of export_memory_timeline: of one run they say the same.
func TestTimelines(t *testing.T) {
	u, err := kineto.ReadTimeline(open(t, "timeline.json"))
	require.NoError(t, err)
	require.Len(t, u.Rows, 2)
	assert.Equal(t, "Parameter", u.Rows[0].Kind)
	assert.Equal(t, alloc.Bytes(512), u.Rows[0].Live.Bytes)
	assert.Equal(t, alloc.Bytes(2048), u.Rows[1].Peak.Bytes)

	raw, err := kineto.ReadTimeline(open(t, "torch2.15-cpu.raw.json.gz"))
	require.NoError(t, err)
	sums, err := kineto.ReadTimeline(open(t, "torch2.15-cpu.json.gz"))
	require.NoError(t, err)
	assert.Equal(t, raw.Rows, sums.Rows)
	assert.Equal(t, 2026, raw.Time.Year())
	assert.Equal(t, "Parameter", raw.Rows[0].Kind)
	assert.Equal(t, alloc.Bytes(65536+1024+8192+32), raw.Rows[0].Live.Bytes, "the parameters of the two layers")
}

// FuzzRead: what is read is a dump that can be written and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(traceOf(event("15.5", 1, 1, 100, 1, 0), event("16.123", 1, 1, -100, 1, 0), called("cpu_op", "a", "15", "1", 1), called("python_function", "a.py(1): f", "14", "9", 1))))
	f.Add([]byte(traceOf(event("1e9", 1, 1, 1<<62, 1, 0), event(strings.Repeat("9", 400), 1, 1, -1, 99, 1<<30), `{"name":"[memory]","args":{"Bytes":"x"}}`)))
	f.Add([]byte(`{"deviceProperties":[{"id":0,"name":"\u001b[31m"}],"traceEvents":[` + event("0.9999999", 1, 1<<63, 5, 1, 0) + `]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, _, err := kineto.Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		var b bytes.Buffer
		require.NoError(t, d.WriteJSON(&b))
		_, err = snapshot.ReadDump(&b)
		require.NoError(t, err)
		if s := d.Snapshot; s.Peak.Bytes < s.Live.Bytes || s.Live.Bytes < 0 {
			t.Errorf("live %v, peak %v", s.Live, s.Peak)
		}
	})
}

// FuzzReadTimeline: amounts are never negative.
func FuzzReadTimeline(f *testing.F) {
	for _, text := range []string{"[[100,200],[[0,0,0,0,0,0,0,0,0],[0,512,0,0,0,0,0,0,0]]]", "[[-1,1,65536,0],[5,4,-65536,0]]", "[[1,2,3,4],[[0]]]", "[[" + strings.Repeat("9", 400) + "]]", "[[1,1,-1e300,7]]"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		u, err := kineto.ReadTimeline(bytes.NewReader(text))
		if err != nil {
			return
		}
		for _, row := range u.Rows {
			if row.Live.Bytes < 0 || row.Peak.Bytes < 0 {
				t.Errorf("%+v", row)
			}
		}
	})
}

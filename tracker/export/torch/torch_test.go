package torch

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func write(t require.TestingT, r *snapshot.Dump) []byte {
	var b bytes.Buffer
	require.NoError(t, Write(&b, r))
	return b.Bytes()
}

func trained(t *testing.T, cfg tracker.Config) *snapshot.Dump {
	tr := exporttest.New(t, cfg)
	exporttest.Train(t, tr)
	return tr.Dump()
}

func simulated(t require.TestingT, cfg sim.Config) sim.Device {
	device, err := sim.New(cfg)
	require.NoError(t, err)
	return device
}

func TestWriteIsViewable(t *testing.T) {
	whole := trained(t, tracker.Config{})
	noHistory := new(snapshot.Dump)
	*noHistory = *whole
	noHistory.History = snapshot.History{}
	for name, r := range map[string]*snapshot.Dump{
		"whole":         whole,
		"no history":    noHistory,
		"short history": trained(t, tracker.Config{MaxEvents: 9}),
		"no cache":      trained(t, tracker.Config{NoCache: true}),
		"own cache":     trained(t, tracker.Config{Device: cachetest.NewCache(t, simulated(t, sim.Config{Memory: alloc.GiB}), cache.Config{})}),
		"third device":  trained(t, tracker.Config{Device: simulated(t, sim.Config{Memory: alloc.GiB, Ordinal: 2})}),
		"two devices":   twoDevices(t),
		"nothing":       exporttest.New(t, tracker.Config{}).Dump(),
	} {
		t.Run(name, func(t *testing.T) { requireViewable(t, write(t, r)) })
	}
}

// twoDevices are the first and the fourth of a process.
func twoDevices(t *testing.T) *snapshot.Dump {
	r := trained(t, tracker.Config{Device: simulated(t, sim.Config{Memory: alloc.GiB, Ordinal: 3})})
	r.Others = []*snapshot.Dump{trained(t, tracker.Config{})}
	return r
}

func TestWriteTakesAllDevices(t *testing.T) {
	r := twoDevices(t)
	c, err := read(bytes.NewReader(write(t, r)))
	require.NoError(t, err)
	devices := append([]*snapshot.Dump{c.Dump}, c.Dump.Others...)
	require.Len(t, devices, 2)
	for _, d := range devices {
		assert.Contains(t, []int{0, 3}, d.Snapshot.Ordinal)
		assert.Equal(t, r.Snapshot.Live, d.Snapshot.Live)
		assert.Equal(t, r.Snapshot.Peak, d.Snapshot.Peak)
	}
	r.Others[0].Snapshot.Ordinal = 3
	assert.ErrorContains(t, Write(io.Discard, r), "two devices of number 3")
}

// TestAnyProgramIsViewable runs random programs, over every kind of tracker.
func TestAnyProgramIsViewable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := tracker.Config{Report: io.Discard, Clock: exporttest.Clock()}
		var device alloc.Device = simulated(t, sim.Config{Memory: 64 * alloc.MiB, Overhead: -1})
		cfg.NoCache = rapid.Bool().Draw(t, "no cache")
		if rapid.Bool().Draw(t, "own cache") {
			device = cachetest.NewCache(t, device, cache.Config{})
		}
		cfg.Device = device
		cfg.MaxEvents = rapid.SampledFrom([]int{0, -1, 3, 20}).Draw(t, "max events")
		tr, err := tracker.New(cfg)
		require.NoError(t, err)
		defer tr.Close()

		var live []*tracker.Buffer
		registered := make(map[alloc.Ptr]bool)
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				size := rapid.SampledFrom([]alloc.Bytes{0, 1, 512, 700_000, 3 * alloc.MiB, 30 * alloc.MiB}).Draw(t, "size")
				if b, err := tr.AllocBytes(size, rapid.SampledFrom(mem.Kinds()).Draw(t, "kind")); err == nil {
					live = append(live, b)
				}
			},
			"free": func(t *rapid.T) {
				if len(live) > 0 {
					i := rapid.IntRange(0, len(live)-1).Draw(t, "buffer")
					require.NoError(t, live[i].Free())
					live = append(live[:i], live[i+1:]...)
				}
			},
			"register": func(t *rapid.T) {
				ptr := alloc.Ptr(0x1000 + 0x400*rapid.Uint64Range(0, 8).Draw(t, "place"))
				if tr.Register(ptr, alloc.DeviceMemory, alloc.Shape{rapid.SampledFrom([]int{0, 0x100, 0x400, 0x900}).Draw(t, "size")}, alloc.Uint8, tracker.Input) == nil {
					registered[ptr] = true
				}
			},
			"unregister": func(t *rapid.T) {
				for ptr := range registered {
					_, err := tr.Unregister(ptr)
					require.NoError(t, err)
					delete(registered, ptr)
					break
				}
			},
			"clear cache": func(t *rapid.T) { _, _ = tr.ClearCache() },
			"track":       func(t *rapid.T) { tr.Track() },
			"":            func(t *rapid.T) { requireViewable(t, write(t, tr.Dump())) },
		})
	})
}

func TestReadGivesBackWhatWriteWrote(t *testing.T) {
	r := trained(t, tracker.Config{})
	r.Snapshot.Origin = snapshot.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(0), WorldSize: 8}
	c, err := read(bytes.NewReader(write(t, r)))
	require.NoError(t, err)
	require.Empty(t, c.Dump.Others)
	got := c.Dump

	assert.Equal(t, r.Snapshot.Origin, got.Snapshot.Origin)
	assert.WithinDuration(t, r.Snapshot.Time, got.Snapshot.Time, 1000)
	assert.Equal(t, r.Snapshot.Device, got.Snapshot.Device)
	assert.Equal(t, r.Snapshot.Live, got.Snapshot.Live)
	assert.Equal(t, r.Snapshot.Peak, got.Snapshot.Peak)
	assert.Equal(t, r.Snapshot.Total, got.Snapshot.Total)
	assert.Equal(t, r.Snapshot.Allocated, got.Snapshot.Allocated)
	assert.Equal(t, r.Snapshot.Sub(nil).String(), got.Snapshot.Sub(nil).String(), "the same groups")

	rows := func(u *export.Usage) (out []export.Row) {
		for _, row := range u.Rows {
			row.CallSite = row.Stack.CallSite()
			out = append(out, row)
		}
		return out
	}
	assert.ElementsMatch(t, rows(export.FromSnapshot(r.Snapshot)), rows(c.Usage))
	requireViewable(t, write(t, &snapshot.Dump{Snapshot: got.Snapshot, History: got.History}))
}

// recorded are the names of files that Python wrote, of one snapshot.
var recorded = []string{
	"pytorch0.pickle", "pytorch1.pickle", "pytorch2.pickle", "pytorch3.pickle", "pytorch4.pickle", "pytorch5.pickle", "pytorch.json",
}

func TestReadOfPyTorchItself(t *testing.T) {
	for _, name := range recorded {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", name))
			require.NoError(t, err)
			c, err := read(bytes.NewReader(text))
			require.NoError(t, err)
			u := c.Usage

			step := mem.Frame{Function: "train_step", File: "/home/user/train.py", Line: 42}
			require.Len(t, u.Rows, 3)
			for i, row := range u.Rows {
				assert.Equal(t, row.Live, row.Total)
				assert.Equal(t, row.Live, row.Peak)
				u.Rows[i].Total, u.Rows[i].Peak = mem.Tally{}, mem.Tally{}
			}
			for i, want := range []export.Row{
				{Kind: "OptimizerState", Device: "cuda:0", Stream: "default stream", Totals: snapshot.Totals{Live: mem.Tally{Count: 1, Bytes: 8<<20 - 100}}},
				{Kind: "autograd_detail", Device: "cuda:0", Stream: "default stream", Totals: snapshot.Totals{Live: mem.Tally{Count: 1, Bytes: 1 << 20}}},
				{Device: "cuda:1", Stream: "default stream", Totals: snapshot.Totals{Live: mem.Tally{Count: 1, Bytes: 5<<30 - 8}}},
			} {
				assert.Equal(t, step, u.Rows[i].CallSite)
				want.Stack, want.CallSite = u.Rows[i].Stack, step
				assert.Equal(t, want, u.Rows[i])
			}
			assert.Len(t, u.Rows[0].Stack, 4)

			packed, err := read(bytes.NewReader(pack(t, text)))
			require.NoError(t, err)
			assert.Equal(t, headOf(c.Dump), headOf(packed.Dump))
			assert.Len(t, packed.Usage.Rows, len(u.Rows))
		})
	}
}

func pack(t *testing.T, text []byte) []byte {
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	_, err := zip.Write(text)
	require.NoError(t, errors.Join(err, zip.Close()))
	return b.Bytes()
}

// TestReadTakesEveryPart: what Read sums up is only some of what a file has.
func TestReadTakesEveryPart(t *testing.T) {
	for _, name := range recorded {
		f, err := os.Open(filepath.Join("testdata", name))
		require.NoError(t, err)
		defer f.Close()
		s, err := readRaw(f, 0)
		require.NoError(t, err)

		var segments []rawSegment
		var blocks []rawBlock
		for g, err := range s.segments() {
			require.NoError(t, err)
			for b, err := range s.blocksOf(&g) {
				require.NoError(t, err)
				b.value = plain.Value{}
				blocks = append(blocks, b)
			}
			g.blocks, g.description = plain.Value{}, ""
			segments = append(segments, g)
		}
		const base = 0x7F1000000000
		frames := segments[0].stack
		assert.Len(t, s.table.Stack(frames), 4)
		assert.Equal(t, []rawSegment{
			{address: base, total: 20 << 20, kind: "large", stack: frames},
			{device: 1, address: base, total: 5 << 30, kind: "large", pool: poolID{0, 1}, expandable: true},
		}, segments)
		assert.Equal(t, []rawBlock{
			{address: base, size: 8 << 20, requested: 8<<20 - 100, state: allocated, stack: frames},
			{address: base + 8<<20, size: 1 << 20, requested: 1 << 20, state: allocated, stack: frames},
			{address: base + 9<<20, size: 11 << 20},
			{address: base, size: 5 << 30, requested: 5<<30 - 8, state: allocated, stack: blocks[3].stack},
		}, blocks)
		assert.Equal(t, s.table.Stack(frames)[1:], s.table.Stack(blocks[3].stack))

		var events []rawEvent
		for e, err := range s.events(0) {
			require.NoError(t, err)
			e.metadata = plain.Value{}
			events = append(events, e)
		}
		const micros = 1780000000000000
		assert.Equal(t, []rawEvent{
			{action: "segment_alloc", addr: base, size: 20 << 20, free: -1, micros: micros, stack: frames},
			{action: "alloc", addr: base, size: 8<<20 - 100, free: -1, micros: micros + 1, stack: frames, category: "optimizer_state"},
			{action: "alloc", addr: base + 8<<20, size: 1 << 20, free: -1, micros: micros + 2, stack: frames, category: "autograd_detail"},
			{action: "oom", size: 1 << 40, free: 1 << 33, micros: micros + 3, stack: frames},
		}, events)
		assert.Len(t, s.traces, 2)
		assert.EqualValues(t, -1, s.integer(s.settings, s.Key("max_split_size")))
		assert.Equal(t, plain.List, s.annotations.Kind())
	}
}

// TestPythonReadsIt has Python load the pickle and add up what it holds.
func TestPythonReadsIt(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not in PATH")
	}
	r := trained(t, tracker.Config{})
	cmd := exec.Command(python, "-c", `
import json, pickle, sys
s = pickle.load(sys.stdin.buffer)
for seg in s["segments"]:
    assert sum(b["size"] for b in seg["blocks"]) == seg["total_size"]
    assert type(seg["segment_pool_id"]) is tuple and seg["is_expandable"] is False
live = [b for seg in s["segments"] for b in seg["blocks"] if b["state"] == "active_allocated"]
json.dump({
    "count": len(live),
    "bytes": sum(b["requested_size"] for b in live),
    "functions": sorted({b["frames"][1]["name"].split(".")[-1] for b in live}),
    "allocs": sum(e["action"] == "alloc" for e in s["device_traces"][0]),
    "oom": [e["size"] for e in s["device_traces"][0] if e["action"] == "oom"],
    "categories": sorted({e["category"] for e in s["device_traces"][0]}),
}, sys.stdout)`)
	cmd.Stdin = bytes.NewReader(write(t, r))
	out, err := cmd.Output()
	require.NoError(t, err)
	want := map[string]any{
		"count": 4, "bytes": r.Snapshot.Live.Bytes, "functions": []string{"Train", "loadBatch", "loadWeights"},
		"allocs": 2 + 3*4 + 1 + 1, "oom": []int64{64 << 30}, "categories": []string{"activation", "input", "parameter", "unknown"},
	}
	text, err := json.Marshal(want)
	require.NoError(t, err)
	assert.JSONEq(t, string(text), string(out))
}

func TestReadRefusesWithAReason(t *testing.T) {
	whole := write(t, trained(t, tracker.Config{}))
	for name, test := range map[string]struct{ text, want string }{
		"empty":          {"", "the file is torn"},
		"torn":           {string(whole[:len(whole)/2]), "the file is torn"},
		"torn JSON":      {`{"segments": [`, "the file is torn"},
		"not a pickle":   {"yes", `at byte 0: opcode 'y'`},
		"other JSON":     {`{"schema": 1}`, "segments is None, want a list: not a memory snapshot"},
		"no JSON":        {`{"segments": x}`, "invalid character 'x'"},
		"new protocol":   {"\x80\x06N.", "a pickle of protocol 6, this program reads 0 to 5"},
		"runs code":      {"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.", "would run code"},
		"names code":     {"\x80\x04\x8c\x02os\x8c\x06system\x93.", "would run code"},
		"not a snapshot": {"\x80\x02}.", "segments is None, want a list: not a memory snapshot"},
		"a number":       {"\x80\x02K\x01.", "the file holds an integer, want a dict with segments, or a list of them"},
		"segments":       {"(lp0\nI1\na.", "segments[0] is an integer, want a dict"},
		"long string":    {"\x80\x02X\xff\xff\xff\xff.", "a string of 4294967295 bytes"},
		"no memo":        {"\x80\x02h\x07.", "value 7 was never stored"},
		"no device":      {"\x80\x04}(X\x08\x00\x00\x00segments](}\x94h\x00eu.", "segment 0: there is no device"},
		"no mark":        {"\x80\x04]e.", "no mark"},
		"not a dict":     {"\x80\x04]NNs.", "an opcode finds a list, want a dict"},
		"two values":     {"\x80\x04NN.", "the pickle ends with 2 values, want 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Read(strings.NewReader(test.text))
			assert.ErrorContains(t, err, test.want)
			assert.ErrorContains(t, err, "read PyTorch snapshot: ")
		})
	}
}

func TestReadTakesTheLastTime(t *testing.T) {
	var b bytes.Buffer
	p := newPickler(&b)
	p.beginDict()
	p.name("segments")
	p.beginList().end()
	p.name("device_traces")
	devices := p.beginList()
	for _, times := range [][]int64{{7, 9}, {3}} {
		devices.next()
		events := p.beginList()
		for _, us := range times {
			events.next()
			p.beginDict()
			p.intItem("time_us", us)
			p.endDict()
		}
		events.end()
	}
	devices.end()
	p.endDict()
	require.NoError(t, p.close())
	c, err := read(&b)
	require.NoError(t, err)
	assert.Equal(t, int64(9), c.Usage.Time.UnixMicro(), "whichever device had it")
}

func TestWriteRefusesWithAReason(t *testing.T) {
	r := trained(t, tracker.Config{})
	tr := exporttest.New(t, tracker.Config{})
	_, err := tr.AllocBytes(alloc.MiB, tracker.Input)
	require.NoError(t, err)
	r.Snapshot = tr.LightSnapshot()
	assert.ErrorContains(t, Write(io.Discard, r), "write PyTorch snapshot: the snapshot has no single buffers")
	assert.ErrorIs(t, Write(io.Discard, &snapshot.Dump{}), walk.ErrNoSnapshot)
	r.Snapshot = exporttest.New(t, tracker.Config{}).LightSnapshot()
	assert.NoError(t, Write(io.Discard, r), "nothing is live")
}

func FuzzRead(f *testing.F) {
	for _, name := range recorded {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(f, err)
		f.Add(text)
	}
	const small = `{"segments": [{"device": 0, "address": 1048576, "total_size": 1024, "stream": 7, "segment_type": "small", "segment_pool_id": [0, 1], "is_expandable": false,
		"blocks": [{"address": 1048576, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": [{"filename": "a.py", "line": 1, "name": "f"}]}, {"size": 512, "state": "inactive"}]}],
		"device_traces": [[{"action": "alloc", "addr": 1048576, "size": 500, "stream": 7, "time_us": 3, "category": "parameter", "user_metadata": {"step": 3}},
		{"action": "free_requested", "addr": 1048576, "size": 500}, {"action": "free_completed", "addr": 1048576, "size": 500}, {"action": "segment_map", "addr": 1048576, "size": 512},
		{"action": "annotate", "addr": 1048576, "size": 0, "user_metadata": "x"}, {"action": "oom", "device_free": 3, "size": 1}]],
		"host_segments": [{"address": 1, "total_size": 2, "state": "active_allocated"}], "host_traces": [{"action": "alloc", "addr": 1, "size": 2}],
		"external_annotations": [{"stage": "START", "name": "x", "device": 0, "time_us": 1}], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}}`
	f.Add([]byte(small))
	c, err := read(strings.NewReader(small))
	require.NoError(f, err)
	var pickled bytes.Buffer
	require.NoError(f, Write(&pickled, c.Dump))
	f.Add(pickled.Bytes())
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := read(bytes.NewReader(text))
		if err != nil {
			return
		}
		export.Compare(nil, []*export.Usage{c.Usage}, "line", "live")
		for _, d := range append(c.Dump.Others, c.Dump) {
			require.NoError(t, d.WriteJSON(io.Discard))
			_ = Write(io.Discard, &snapshot.Dump{Snapshot: d.Snapshot, History: d.History})
		}
	})
}

// headOf is a dump's snapshot without its tables, which refer to each other in the source's own way.
func headOf(d *snapshot.Dump) snapshot.Snapshot {
	head := *d.Snapshot
	head.Tables = snapshot.Tables{}
	return head
}

// TestPoolsOfEvents: PyTorch names the private pool of each event since 2.12, also of one that is gone at the end.
func TestPoolsOfEvents(t *testing.T) {
	const text = `{"segments": [], "device_traces": [[
		{"action": "segment_alloc", "addr": 1073741824, "size": 20971520, "stream": 0, "time_us": 1, "frames": [], "pool_id": [0, 1]},
		{"action": "alloc", "addr": 1073741824, "size": 2097152, "stream": 0, "time_us": 2, "frames": [], "pool_id": [0, 1]},
		{"action": "free_requested", "addr": 1073741824, "size": 2097152, "stream": 0, "time_us": 3, "frames": [], "pool_id": [0, 1]},
		{"action": "free_completed", "addr": 1073741824, "size": 2097152, "stream": 0, "time_us": 4, "frames": [], "pool_id": [0, 1]},
		{"action": "segment_free", "addr": 1073741824, "size": 20971520, "stream": 0, "time_us": 5, "frames": [], "pool_id": [0, 1]},
		{"action": "segment_alloc", "addr": 1073741824, "size": 20971520, "stream": 0, "time_us": 6, "frames": [], "pool_id": [0, 0]},
		{"action": "segment_free", "addr": 1073741824, "size": 20971520, "stream": 0, "time_us": 7, "frames": [], "pool_id": [0, 0]}]]}`
	var written bytes.Buffer
	for _, in := range []io.Reader{strings.NewReader(text), &written} {
		dump, _, err := Read(in)
		require.NoError(t, err)
		var pools []string
		for e := range dump.Events() {
			if e.Action == mem.SegmentAllocated || e.Action == mem.SegmentFreed {
				pools = append(pools, e.Private)
			}
		}
		assert.Equal(t, []string{"0,1", "0,1", "", ""}, pools)
		if written.Len() == 0 {
			require.NoError(t, Write(&written, dump))
		}
	}
}

// TestAnnotation: a text that a program gives a tensor after its allocation takes the place of the one at it.
func TestAnnotation(t *testing.T) {
	const text = `{"segments": [{"device": 0, "address": 1073741824, "total_size": 2097152, "stream": 0, "segment_type": "small", "blocks": [
		{"address": 1073741824, "size": 2097152, "requested_size": 2097152, "state": "active_allocated", "frames": []}]}],
		"device_traces": [[
		{"action": "segment_alloc", "addr": 1073741824, "size": 2097152, "stream": 0, "time_us": 1, "frames": []},
		{"action": "alloc", "addr": 1073741824, "size": 2097152, "stream": 0, "time_us": 2, "frames": [], "user_metadata": "at the allocation"},
		{"action": "annotate", "addr": 1073741824, "size": 0, "stream": 0, "time_us": 3, "frames": [], "user_metadata": "saved by autograd"},
		{"action": "annotate", "addr": 4096, "size": 0, "stream": 0, "time_us": 4, "frames": [], "user_metadata": "nothing is there"}]]}`
	dump, _, err := Read(strings.NewReader(text))
	require.NoError(t, err)
	var labels []string
	for a := range dump.Snapshot.Allocations() {
		labels = append(labels, a.Label)
	}
	assert.Equal(t, []string{"saved by autograd"}, labels)
	assert.Equal(t, 2, len(tables.OfHistory(&dump.History).Events), "it is no event about memory")
}

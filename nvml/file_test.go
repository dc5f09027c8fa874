package nvml

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got))
}

// recordAll makes a recording with everything in it, in both formats.
func recordAll(t *testing.T) (rec Recording, files []string) {
	t.Helper()
	dir := t.TempDir()
	files = []string{filepath.Join(dir, "all.jsonl"), filepath.Join(dir, "all.csv")}
	synctest.Test(t, func(t *testing.T) {
		f := newFake(2)
		f.devices[1] = Device{Index: 1, UUID: "MIG-1", Name: `A100 "MIG", 1g`, Parent: "GPU-1", MIG: 1}
		f.lacks = setOf(FanSpeed)
		f.scope = ofDeviceAndDriver
		f.processes = func(d Device) (map[int]alloc.Bytes, error) {
			return map[int]alloc.Bytes{os.Getpid(): []alloc.Bytes{7 * alloc.MiB, -1}[d.Index]}, nil
		}
		r := start(t, Config{
			Source: f, Files: files, Interval: time.Second, Target: Target{PID: os.Getpid(), Children: true},
			Quantities: []Quantity{Power, FanSpeed},
		})
		time.Sleep(1500 * time.Millisecond)
		f.set(0, 0, errFlaky)
		time.Sleep(time.Second)
		f.set(0, 200*alloc.GiB, nil)
		f.set(1, 0, ErrLost)
		time.Sleep(time.Second)
		require.NoError(t, r.Stop())
		rec = r.Recording()
	})
	return rec, files
}

func TestFilesHoldTheRecording(t *testing.T) {
	rec, files := recordAll(t)
	for _, name := range files {
		read, err := ReadFile(name)
		require.NoError(t, err, name)
		require.Len(t, read.Series, len(rec.Series))
		for i, want := range rec.Series {
			got := read.Series[i]
			assert.Equal(t, want.Quantity, got.Quantity)
			assert.Equal(t, want.Device.Label(), got.Device.Label())
			assert.Equal(t, want.Device.Name, got.Device.Name)
			assert.Equal(t, want.Note, got.Note, name)
			assert.Equal(t, want.Ended, got.Ended)
			assert.Equal(t, want.Scope, got.Scope)
			assert.Equal(t, want.Gaps(), got.Gaps(), "%s: %v", name, want.Label())
			assert.Equal(t, want.points, got.points)
		}
		assert.Equal(t, rec.Duration(), read.Duration())
		assert.True(t, read.Target.Children)
	}
}

func TestFileFormats(t *testing.T) {
	_, files := recordAll(t)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		pid := regexp.MustCompile(fmt.Sprintf(`(pid"?[: ])%d\b`, os.Getpid()))
		golden(t, "recording"+filepath.Ext(name), pid.ReplaceAll(text, []byte("${1}42")))
	}
}

// A recorder that is killed as it writes leaves any part of its last line.
func TestATornLastLineIsReadOver(t *testing.T) {
	_, files := recordAll(t)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		lastLine := len(text) - 1
		for lastLine > 0 && text[lastLine-1] != '\n' {
			lastLine--
		}
		var whole Recording
		for cut := lastLine; cut < len(text); cut++ {
			require.NoError(t, os.WriteFile(name, text[:cut], 0o644))
			read, err := ReadFile(name)
			require.NoError(t, err, "%s cut at byte %d", name, cut)
			if cut == lastLine {
				whole = read
			}
			assert.Equal(t, whole.Series[0].Len(), read.Series[0].Len())
		}
	}
}

func TestReadFileRefuses(t *testing.T) {
	header := `{"schema":"gpumemtrack.recording/1","devices":[{"index":0,"uuid":"GPU-0","name":"A"}]}` + "\n"
	columns := "time_seconds,gpu,name,uuid,target,memory_used_bytes,scope,note\n"
	var many, listed strings.Builder
	for i := range 3000 { // a small file, which a chart once took 600 MiB for
		fmt.Fprintf(&many, "1,GPU %d,A,GPU-%d,,1,,\n", i, i)
		fmt.Fprintf(&listed, `,{"index":%d,"uuid":"GPU-%d","name":"A"}`, i, i)
	}
	tests := []struct{ name, file, text, says string }{
		{"invented devices", "a.csv", columns + many.String(), "line 258: more than 256 devices"},
		{"invented devices", "a.jsonl", strings.Replace(header, "}]}", "}"+listed.String()+"]}", 1), "more than 256 devices"},
		{"nothing", "a.jsonl", "", "no header"},
		{"no recording", "a.jsonl", "hello\n", "line 1: the first line is not the header"},
		{"a later format", "a.jsonl", `{"schema":"gpumemtrack.recording/9"}` + "\n", "this program reads"},
		{"a broken line", "a.jsonl", header + "{\n{}\n", "line 2"},
		{"no time", "a.jsonl", header + `{"device":0}` + "\n", "line 2: a sample without its time"},
		{"a foreign device", "a.jsonl", header + `{"time_seconds":1,"device":3}` + "\n", "the first line does not list"},
		{"a word for a number", "a.jsonl", header + `{"time_seconds":1,"device":0,"power_watts":"x"}` + "\n", "power_watts"},
		{"other columns", "a.csv", "a,b\n1,2\n", `no column "time_seconds"`},
		{"too few fields", "a.csv", columns + "1,2\n", "line 2: 2 fields where the header has 8"},
		{"no GPU", "a.csv", columns + "1,CPU,A,GPU-0,,1,,\n", `gpu "CPU"`},
		{"no number", "a.csv", columns + "1,GPU 0,A,GPU-0,,many,,\n", "memory_used_bytes"},
		{"no time", "a.csv", columns + "x,GPU 0,A,GPU-0,,1,,\n", "line 2"},
		{"no finite number", "a.csv", columns + "1,GPU 0,A,GPU-0,,NaN,,\n", `memory_used_bytes: "NaN" is not a number`},
		{"no time there is", "a.csv", columns + "1e300,GPU 0,A,GPU-0,,1,,\n", "not a time since the recording's start"},
		{"a time before the start", "a.jsonl", header + `{"time_seconds":-1,"device":0}` + "\n", "not a time since"},
		{"two recordings", "a.csv", columns + "2,GPU 0,A,GPU-0,,1,,\n1,GPU 0,A,GPU-0,,1,,\n", "line 3: the time goes back from 2s to 1s"},
		{"two recordings", "a.jsonl", header + `{"time_seconds":2,"device":0}` + "\n" + `{"time_seconds":1,"device":0}` + "\n", "the time goes back"},
		{"no scope", "a.csv", columns + "1,GPU 0,A,GPU-0,,1,moon,\n", `no scope "moon"`},
	}
	for _, test := range tests {
		t.Run(test.name+" in "+test.file, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), test.file)
			require.NoError(t, os.WriteFile(path, []byte(test.text), 0o644))
			_, err := ReadFile(path)
			assert.ErrorContains(t, err, test.says)
		})
	}
	_, err := ReadFile(filepath.Join(t.TempDir(), "none.jsonl"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestAReadRecordingIsBounded(t *testing.T) {
	f := newFake(1)
	path := filepath.Join(t.TempDir(), "long.jsonl")
	r, err := NewRecorder(Config{Source: f, Files: []string{path}, maxPoints: 64})
	require.NoError(t, err)
	sampling(t, r)
	for i := range 3 * defaultPoints {
		f.set(0, alloc.Bytes(i), nil)
		sampleNow(r)
	}
	require.NoError(t, r.Stop())
	read, err := ReadFile(path)
	require.NoError(t, err)
	for s, size := range map[*Series]int{&r.Recording().Series[0]: 64, &read.Series[0]: defaultPoints} {
		assert.Equal(t, 3*defaultPoints, s.Len())
		assert.LessOrEqual(t, len(s.points), size)
		assert.Equal(t, []float64{0, 3*defaultPoints - 1}, []float64{s.Min(), s.Max()})
	}
}

func FuzzReadLines(f *testing.F) {
	f.Add([]byte(`{"schema":"gpumemtrack.recording/1","devices":[{"index":0}]}`+"\n"+`{"time_seconds":1,"device":0,"memory_used_bytes":5}`+"\n"), false)
	f.Add([]byte("time_seconds,gpu,name,uuid,target,memory_used_bytes,scope,note\n1,GPU 0,A,GPU-0,,5,,\n"), true)
	f.Fuzz(func(t *testing.T, text []byte, isCSV bool) {
		rec, err := readLines(bytes.NewReader(text), newLineReader(isCSV))
		if err != nil {
			return
		}
		for _, s := range rec.Series {
			if s.Len() > 0 && !math.IsNaN(s.Mean()) && s.Min() > s.Max() {
				t.Errorf("%v", s)
			}
		}
	})
}

// Values that no device can have are refused, and not drawn.
func TestImpossibleValues(t *testing.T) {
	header := `{"schema":"gpumemtrack.recording/1","devices":[{"index":0,"uuid":"GPU-0"}]}` + "\n"
	for text, says := range map[string]string{
		`{"time_seconds":0,"device":0,"memory_used_bytes":1e300}`: "memory_used_bytes: 1e300 cannot be",
		`{"time_seconds":0,"device":0,"memory_used_bytes":-1}`:    "memory_used_bytes: -1 cannot be",
		`{"time_seconds":0,"device":0,"power_watts":"x"}`:         "is not a number",
		`{"time_seconds":0,"device":0,"capacity_bytes":-5}`:       "cannot be",
	} {
		_, err := readLines(strings.NewReader(header+text+"\n"), newLineReader(false))
		assert.ErrorContains(t, err, says)
	}
	rec, err := readLines(strings.NewReader(header+`{"time_seconds":0,"device":0,"temperature_celsius":-5}`+"\n"), newLineReader(false))
	require.NoError(t, err)
	assert.Equal(t, -5.0, rec.Series[0].Min())
}

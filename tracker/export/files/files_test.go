package files_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// formats writes a tracker's state in every format that can be read.
func formats(tr *tracker.MemTracker) map[string]func(io.Writer) error {
	return map[string]func(io.Writer) error{
		"snapshot":         tr.Snapshot().WriteJSON,
		"dump":             func(w io.Writer) error { return tr.Dump().WriteJSON(w) },
		"pprof profile":    func(w io.Writer) error { return pprof.Write(w, tr.Dump()) },
		"PyTorch snapshot": func(w io.Writer) error { return torch.Write(w, tr.Dump()) },
	}
}

func TestEveryFormatIsKnownByWhatItHolds(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	live, _ := export.Compare(nil, []*export.Usage{export.FromSnapshot(tr.Snapshot())}, "line", "live")
	for format, write := range formats(tr) {
		t.Run(format, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "any name")
			var text bytes.Buffer
			require.NoError(t, write(&text))
			require.NoError(t, os.WriteFile(path, text.Bytes(), 0o644))
			f, err := files.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, format, f.Format)
			assert.Equal(t, path, f.Usage.Name)
			got, _ := export.Compare(nil, []*export.Usage{f.Usage}, "line", "live")
			assert.Equal(t, live, got, "the same lines of code hold the same")

			_, err = files.Read(bytes.NewReader(text.Bytes()[:text.Len()*2/3]))
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF, "torn")
		})
	}
}

// TestDumpsThatLackSites: what is left out of a dump counts as unknown.
func TestDumpsThatLackSites(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{MaxDumpBytes: 16 * alloc.KiB})
	exporttest.Train(t, tr)
	for n := range 500 {
		_, err := tr.AllocBytes(alloc.Bytes(n+1), tracker.Activation)
		require.NoError(t, err)
	}
	path, err := tr.DumpFile(t.TempDir(), "test")
	require.NoError(t, err)
	file, err := files.ReadFile(path)
	require.NoError(t, err)
	s := tr.LightSnapshot()
	var live, peak, total mem.Tally
	for _, row := range file.Usage.Rows {
		live, peak, total = live.Add(row.Live), peak.Add(row.Peak), total.Add(row.Total)
	}
	assert.Equal(t, s.Live, live)
	assert.Equal(t, s.Peak, peak)
	assert.Equal(t, s.Total, total)
	last := file.Usage.Rows[len(file.Usage.Rows)-1]
	assert.NotZero(t, last.Live)
	assert.Zero(t, last.CallSite)
}

func TestOthersAreRefusedWithAReason(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "the file is empty",
		"  \n":               `begins with "  \n"`,
		"hello":              `begins with "hello"`,
		"{}":                 `the schema is "", want "gpumemtrack.snapshot"`,
		`{"traceEvents":[]}`: "trace events are for a viewer",
		`{"a":[1,2`:          "its JSON is damaged, or ends too early",
		"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n": "it is a pointer of Git LFS, and the file itself is not here: run git lfs pull",
		`{"schema":"gpumemtrack.snapshot","version":99}`:                          "gpumemtrack.snapshot of version 99, this program reads versions up to 4",
		`{"schema":"gpumemtrack.dump","version":99}`:                              "gpumemtrack.dump of version 99, this program reads versions up to 2",
	} {
		_, err := files.Read(strings.NewReader(text))
		assert.ErrorContains(t, err, want)
	}
	_, err := files.ReadFile(filepath.Join(t.TempDir(), "missing"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestKeysInAnotherOrder: jq -S and other programs write them so.
func TestKeysInAnotherOrder(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	for _, format := range []string{"snapshot", "dump"} {
		var text bytes.Buffer
		require.NoError(t, formats(tr)[format](&text))
		var value any
		require.NoError(t, json.Unmarshal(text.Bytes(), &value))
		sorted, err := json.MarshalIndent(value, "", "  ")
		require.NoError(t, err)
		f, err := files.Read(bytes.NewReader(sorted))
		require.NoError(t, err)
		assert.Equal(t, format, f.Format)
	}
}

// TestPacked: JSON is long, and who keeps it packs it.
func TestPacked(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	for _, format := range []string{"snapshot", "dump"} {
		var packed bytes.Buffer
		zip := gzip.NewWriter(&packed)
		require.NoError(t, formats(tr)[format](zip))
		require.NoError(t, zip.Close())
		f, err := files.Read(bytes.NewReader(packed.Bytes()))
		require.NoError(t, err)
		assert.Equal(t, format, f.Format)
		_, err = files.Read(bytes.NewReader(packed.Bytes()[:packed.Len()/2]))
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF, "torn")
	}
}

func FuzzRead(f *testing.F) {
	device := exporttest.New(f, tracker.Config{})
	exporttest.Train(f, device)
	for _, write := range formats(device) {
		var text bytes.Buffer
		require.NoError(f, write(&text))
		f.Add(text.Bytes())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := files.Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		export.Compare(nil, []*export.Usage{file.Usage}, "shape", "total")
		_ = pprof.WriteUsage(io.Discard, file.Usage)
		if file.Dump != nil {
			for _, write := range []func(io.Writer, *snapshot.Dump) error{html.Write, torch.Write, trace.Write} {
				_ = write(io.Discard, file.Dump)
			}
		}
	})
}

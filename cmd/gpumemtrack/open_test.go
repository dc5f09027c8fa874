package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

// newTracker is a tracker with one buffer of a MiB.
func newTracker(t *testing.T) (*tracker.MemTracker, error) {
	t.Helper()
	gpu, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: gpu, Report: new(bytes.Buffer)})
	require.NoError(t, err)
	t.Cleanup(func() {
		tr.Close()
		gpu.Close()
	})
	_, err = tr.Alloc(alloc.Shape{1 << 18}, alloc.Float32, tracker.Parameter)
	return tr, err
}

// served is a live page of such a tracker.
func served(t *testing.T) string {
	t.Helper()
	tr, err := newTracker(t)
	require.NoError(t, err)
	server := httptest.NewServer(live.Handler(tr))
	t.Cleanup(server.Close)
	return server.URL
}

func runs(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(args, strings.NewReader(stdin), &out, &errs)
	return out.String(), errs.String(), code
}

func TestShowOfALivePage(t *testing.T) {
	url := served(t)
	for _, address := range []string{url, url + "/", url + "/dump"} {
		out, errs, code := runs(t, "", "show", address)
		assert.Zero(t, code, errs)
		assert.Contains(t, out, "newTracker", "the function")
		assert.Contains(t, out, "1.0 MiB")
	}
	out, errs, code := runs(t, "", "show", url, "--json")
	require.Zero(t, code, errs)
	var told shown
	require.NoError(t, json.Unmarshal([]byte(out), &told))
	assert.Equal(t, showSchema, told.Schema)
	assert.Equal(t, alloc.MiB, told.Total.Bytes)
	assert.Equal(t, url, told.Files[0].Name)

	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	_, errs, code = runs(t, "", "show", other.URL)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, errs, "404 Not Found: want the URL of a live page")
	out, errs, code = runs(t, "", "explain", url)
	assert.Zero(t, code, errs)
	assert.NotEmpty(t, out)
}

func TestStandardInput(t *testing.T) {
	_, errs, code := runs(t, "", "show", "-")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, errs, "standard input: not a snapshot: the file is empty")
}

func TestTablesFitTheTerminal(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	const long = "train.go:20 github.com/somebody/something/with/a/very/long/path/to.(*Model).forward"
	fitted := func(width int) string {
		g := memoryTable("Share", "Site", "Memory", "Count", "Share")
		g.AppendRow([]any{long, alloc.MiB, 1, "10.0 %"})
		g.AppendRow([]any{"short.go:1 main.main", alloc.MiB, 1, "10.0 %"})
		g.AppendFooter([]any{"all", alloc.MiB, 1, "100.0 %"})
		return g.fitted(width)
	}
	assert.Contains(t, fitted(0), long)
	for _, width := range []int{200, 100, 80, 60} {
		drawn := fitted(width)
		for line := range strings.Lines(drawn) {
			assert.LessOrEqual(t, len([]rune(strings.TrimSpace(line))), width, line)
		}
		assert.Contains(t, drawn, "forward", "the end of a name tells most")
		assert.Contains(t, drawn, "Memory")
		assert.Equal(t, width > 60, strings.Contains(drawn, "Share"), width)
	}
}

func TestElide(t *testing.T) {
	assert.Equal(t, "abcdef", elide("abcdef", 6))
	assert.Equal(t, "a…ef", elide("abcdef", 4)[:len("a…ef")])
	assert.Len(t, []rune(elide(strings.Repeat("ä", 50), 20)), 20)
}

// Every flag with a value says in capitals what the value is, and nothing in Go's words.
func TestFlagsNameTheirValues(t *testing.T) {
	for _, cmd := range (&app{}).root(nil).Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			name, _ := pflag.UnquoteUsage(f)
			if f.Value.Type() != "bool" {
				assert.Equal(t, strings.ToUpper(name), name, "%s --%s", cmd.Name(), f.Name)
				assert.NotEmpty(t, name, "%s --%s", cmd.Name(), f.Name)
			}
		})
	}
}

// Flags with a choice of words complete them.
func TestFlagsWithAChoiceComplete(t *testing.T) {
	for command, flags := range map[string][]string{
		"show": {"by", "of"}, "diff": {"by", "of"}, "record": {"source", "with"}, "sensors": {"source"}, "replay": {"allocator"},
		"estimate": {"optimizer", "optimizer-form", "gpu", "offload", "zero-grad", "dtype", "autocast", "kv", "zero"},
	} {
		cmd, _, err := (&app{}).root(nil).Find([]string{command})
		require.NoError(t, err)
		for _, flag := range flags {
			complete, ok := cmd.GetFlagCompletionFunc(flag)
			require.True(t, ok, "%s --%s", command, flag)
			values, _ := complete(cmd, nil, "")
			assert.Greater(t, len(values), 1)
		}
	}
}

func TestVersion(t *testing.T) {
	built := &debug.BuildInfo{Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-11-22T09:00:00Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	built.Main.Version = "v1.2.3"
	assert.Regexp(t, `^gpumemtrack v1\.2\.3 commit 0123456789ab of 2026-11-22 with changes, go1\.\d+\S* \w+/\w+$`, describeBuild(built))
	assert.Contains(t, describeBuild(&debug.BuildInfo{}), "(unknown version)")
}

func TestPaintedChanges(t *testing.T) {
	assert.Equal(t, painted(red+"+1.0 MiB"+plain), paintedChange(alloc.MiB, true))
	assert.Equal(t, painted(green+"-1.0 MiB"+plain), paintedChange(-alloc.MiB, true))
	assert.Equal(t, painted("+1.0 MiB"), paintedChange(alloc.MiB, false))
	assert.Equal(t, "0 B", string(paintedChange(0, true)))
}

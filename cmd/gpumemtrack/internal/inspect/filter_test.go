package inspect

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// asked is what show --json says of a file.
func asked(t *testing.T, args ...string) shown {
	t.Helper()
	out, errs, code := runs(t, "", append([]string{"show", "--json"}, args...)...)
	require.Zero(t, code, errs)
	var told shown
	require.NoError(t, json.Unmarshal([]byte(out), &told))
	return told
}

// lines are the bytes of each line.
func (s shown) lines() map[string]alloc.Bytes {
	of := make(map[string]alloc.Bytes)
	for _, l := range s.Lines {
		of[l.Key] = l.Bytes
	}
	return of
}

//go:noinline
func embed(t *testing.T, tr *tracker.MemTracker) {
	_, err := tr.AllocBytes(3*alloc.MiB, tracker.Parameter)
	require.NoError(t, err)
}

//go:noinline
func attend(t *testing.T, tr *tracker.MemTracker, size alloc.Bytes) {
	_, err := tr.AllocBytes(size, tracker.Activation)
	require.NoError(t, err)
}

// program is a run of two functions, two sections and two minutes: 3 MiB of parameters, and two activations.
func program(t *testing.T) string {
	now := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	tr := exporttest.New(t, tracker.Config{Clock: func() time.Time { return now }})
	now = now.Add(time.Second)
	embed(t, tr)
	now = now.Add(2 * time.Minute)
	tr.Do("step", func() {
		tr.Do("attention", func() { attend(t, tr, alloc.MiB) })
		attend(t, tr, 5*alloc.KiB)
	})
	now = now.Add(time.Second)
	return dumpFile(t, tr)
}

func TestFilters(t *testing.T) {
	path := program(t)
	const p, a, s = 3 * alloc.MiB, alloc.MiB, 5 * alloc.KiB
	for _, test := range []struct {
		args []string
		want alloc.Bytes
	}{
		{nil, p + a + s},
		{[]string{"--focus", "embed"}, p},
		{[]string{"--focus", `filter_test\.go:\d+ inspect\.attend$`}, a + s},
		{[]string{"--focus", "TestFilters"}, p + a + s}, // any call counts
		{[]string{"--focus", "nowhere"}, 0},
		{[]string{"--ignore", "embed"}, a + s},
		{[]string{"--focus", "TestFilters", "--ignore", "attend|embed"}, 0},
		{[]string{"--kind", "parameter"}, p},
		{[]string{"--kind", "Parameter", "--kind", "Activation"}, p + a + s},
		{[]string{"--kind", "Gradient"}, 0},
		{[]string{"--section", "step"}, a + s},
		{[]string{"--section", "step/attention"}, a},
		{[]string{"--section", "no section"}, p},
		{[]string{"--older", "1m"}, p},
		{[]string{"--older", "1ms"}, p + a + s},
		{[]string{"--older", "1h"}, 0},
		{[]string{"--older", "1m", "--kind", "Activation"}, 0},
		{[]string{"--of", "peak", "--kind", "Activation"}, a + s},
		{[]string{"--of", "total", "--focus", "embed"}, p},
	} {
		told := asked(t, append([]string{path}, test.args...)...)
		assert.Equal(t, test.want, told.Total.Bytes, test.args)
		assert.Equal(t, p+a+s, told.Total.Bytes+told.Without.Bytes, "%v: what is shown and what is left out are all", test.args)
		assert.Equal(t, int64(3), told.Total.Count+told.Without.Count, test.args)
		assert.Equal(t, test.args == nil, told.Filter == nil, test.args)
	}
	out, _, _ := runs(t, "", "show", path, "--focus", "embed")
	assert.Contains(t, out, "; 2 buffers, 1.0 MiB filtered out\n")
	out, _, _ = runs(t, "", "show", path)
	assert.NotContains(t, out, "filtered")
}

func TestSumsByGroupLabelAndSize(t *testing.T) {
	path := program(t)
	told := asked(t, path, "--group", "attention=attend", "--group", "rest=embed", "--group", "rest=TestSums", "--section", "step")
	assert.Equal(t, map[string]alloc.Bytes{"attention": alloc.MiB + 5*alloc.KiB}, told.lines())
	assert.Equal(t, "group", told.By)
	told = asked(t, path, "--group", "tables=embed")
	assert.Equal(t, map[string]alloc.Bytes{"tables": 3 * alloc.MiB, "no group": alloc.MiB + 5*alloc.KiB}, told.lines())

	told = asked(t, path, "--by", "size")
	var keys []string
	for _, l := range told.Lines {
		keys = append(keys, l.Key)
	}
	assert.Equal(t, []string{"2.0 MiB to 4.0 MiB", "1.0 MiB to 2.0 MiB", "4.0 KiB to 8.0 KiB"}, keys, "the largest first")
	assert.Equal(t, map[string]alloc.Bytes{"no label": 3*alloc.MiB + alloc.MiB + 5*alloc.KiB}, asked(t, path, "--by", "label").lines())
	assert.Equal(t, 8*alloc.MiB-100, asked(t, recorded, "--by", "label").lines()["step=1.5"], "which the recording gave a buffer")
}

func TestDiffFilters(t *testing.T) {
	before, after := dumpFile(t, newTracker(t)), program(t)
	out, errs, code := runs(t, "", "diff", before, after, "--kind", "Activation", "--json")
	require.Zero(t, code, errs)
	var told diffOutput
	require.NoError(t, json.Unmarshal([]byte(out), &told))
	assert.Equal(t, alloc.MiB+5*alloc.KiB, told.Total.Change)
	assert.Equal(t, alloc.MiB, told.Before.Without.Bytes)
	assert.Equal(t, 3*alloc.MiB, told.After.Without.Bytes)
	assert.Equal(t, []string{"Activation"}, told.Filter.Kinds)

	_, errs, code = runs(t, "", "diff", before, after, "--focus", "attend", "--fail-over", "2MiB")
	assert.Zero(t, code, errs)
	_, _, code = runs(t, "", "diff", before, after, "--ignore", "newTracker", "--fail-over", "2MiB")
	assert.Equal(t, cli.ExitUnfit, code)
	out, errs, code = runs(t, "", "diff", before, after, "--by", "size")
	assert.Zero(t, code, errs)
	assert.Regexp(t, `(?s)2\.0 MiB to 4\.0 MiB .*4\.0 KiB to 8\.0 KiB`, out)
}

func TestFiltersThatCannotBe(t *testing.T) {
	path := program(t)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--focus", "["}, "--focus \"[\": error parsing regexp: missing closing ]: `[`: want a regular expression, such as 'attention|mlp'"},
		{[]string{"--ignore", "*"}, "--ignore \"*\": error parsing regexp"},
		{[]string{"--group", "attn"}, `--group "attn": want NAME=REGEXP, such as attention='attn|Attention'`},
		{[]string{"--group", "a=("}, "--group \"(\": error parsing regexp"},
		{[]string{"--group", "a=b", "--by", "kind"}, "--group sums up by its names: leave --by away"},
		{[]string{"--kind", "Weights"}, `--kind "Weights": no memory has that kind: want one of Activation, Parameter`},
		{[]string{"--section", "forward"}, `--section "forward": no memory is of that section: want one of no section, step, step/attention`},
		{[]string{"--older", "-1s"}, "--older cannot be negative"},
		{[]string{"--older", "soon"}, "--older soon: want a time such as 500ms, 10s or 5m"},
		{[]string{"--older", "1m", "--of", "peak"}, "--older: only live buffers have an age"},
		{[]string{"--by", "label", "--of", "total"}, "--by label: only live buffers have one"},
		{[]string{"--by", "site"}, "memory, label, size"},
	} {
		for _, command := range [][]string{{"show", path}, {"diff", path, path}} {
			_, errs, code := runs(t, "", append(command, test.args...)...)
			assert.Equal(t, cli.ExitUsage, code, test.args)
			assert.Contains(t, errs, test.want)
		}
	}
}

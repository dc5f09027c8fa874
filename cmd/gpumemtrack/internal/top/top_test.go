package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// newTracker is a tracker with one buffer of a MiB.
func newTracker(t *testing.T) *tracker.MemTracker {
	t.Helper()
	tr := exporttest.New(t, tracker.Config{})
	_, err := tr.Alloc(alloc.Shape{1 << 18}, alloc.Float32, tracker.Parameter)
	require.NoError(t, err)
	return tr
}

func runs(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = cli.Run(args, strings.NewReader(""), &out, &errs, cli.Command{Name: "top", New: Command})
	return out.String(), errs.String(), code
}

// aSample is of so many devices, each with three processes.
func aSample(devices int) topSample {
	sample := topSample{Time: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC), Source: "NVML, driver 570.86.10"}
	for i := range devices {
		d := topDevice{Reading: nvml.Reading{Device: nvml.Device{Index: i, UUID: fmt.Sprint(i), Name: "NVIDIA H200"}}}
		d.Set(nvml.MemoryTotal, float64(100*alloc.GiB))
		d.Set(nvml.MemoryUsed, float64(alloc.Bytes(i%10+1)*10*alloc.GiB))
		d.Set(nvml.Utilization, 87)
		for k := range 3 {
			p := topProcess{
				PID: 100*(i+1) + k, Device: d.Label(), Memory: alloc.Bytes(k) * alloc.GiB, Total: float64(100 * alloc.GiB),
				SM: -1, Command: fmt.Sprintf("./train --rank %d", k), processFacts: unknownProcess,
			}
			if k == 2 {
				p.Memory = -1
			}
			d.Processes = append(d.Processes, p)
		}
		sample.Devices = append(sample.Devices, d)
	}
	return sample
}

func drawTopText(v *topView, sample topSample, width, height int) []string {
	var rows []string
	for _, l := range v.lines(sample, width, height) {
		rows = append(rows, l.text())
	}
	return rows
}

func TestTopFitsEveryScreen(t *testing.T) {
	sample := aSample(8)
	sample.Devices[1].Err = errors.New("the driver's unknown error that is " + strings.Repeat("long ", 30))
	sample.Pages = []topPage{{URL: "http://localhost:1/", Known: true, Origin: snapshot.Origin{PID: 101}, Live: alloc.GiB}}
	for _, size := range [][2]int{{80, 24}, {200, 60}, {100, 30}, {60, 10}, {40, 5}, {20, 2}} {
		rows := drawTopText(new(topView), sample, size[0], size[1])
		assert.LessOrEqual(t, len(rows), size[1], size)
		if size[0] < 80 {
			continue // what is cut there is the terminal's to cut
		}
		for i, row := range rows {
			if !strings.Contains(row, "unknown error") {
				assert.LessOrEqual(t, len([]rune(row)), size[0], "%v row %d: %s", size, i, row)
			}
		}
		text := strings.Join(rows, "\n")
		assert.Contains(t, text, "GPU 0  NVIDIA H200")
		assert.Contains(t, text, "10.0 GiB /  100.0 GiB   10 %")
		assert.Contains(t, text, "MEMORY↓")
		assert.Equal(t, size[0] >= 100, strings.Contains(text, "87 %"), size)
	}
}

func TestTopSortsAndSelects(t *testing.T) {
	sample, v := aSample(2), new(topView)
	pids := func() (list []string) {
		for _, row := range drawTopText(v, sample, 80, 24) {
			if strings.Contains(row, "./train") {
				list = append(list, strings.Join(strings.Fields(row)[:2], " "))
			}
		}
		return list
	}
	assert.Equal(t, []string{"> 101", "201 GPU", "100 GPU", "200 GPU", "102 GPU", "202 GPU"}, pids())
	for _, step := range []struct {
		key  rune
		want string
	}{
		{keyDown, "> 201"}, {'j', "> 100"}, {keyUp, "> 201"}, {'p', "> 201"}, {'r', "> 201"}, {home, "> 202"}, {end, "> 100"}, {tab, "> 202"},
		{pageDown, "> 100"}, {pageUp, "> 202"}, {keyUp, "> 202"},
	} {
		assert.False(t, v.press(step.key, sample))
		assert.Contains(t, pids(), step.want, "%q", step.key)
	}
	sample.Devices = sample.Devices[:1]
	assert.Contains(t, pids(), "> 102", "the selected one is gone")
	assert.True(t, v.press('q', sample))
	assert.True(t, v.press(ctrlC, sample))
}

func TestTopScrolls(t *testing.T) {
	sample, v := aSample(8), new(topView)
	v.press('p', sample)
	for range 23 {
		v.press(keyDown, sample)
		rows := strings.Join(drawTopText(v, sample, 80, 24), "\n")
		require.Contains(t, rows, fmt.Sprintf("> %8d", v.pid))
	}
	assert.Equal(t, 802, v.pid)
}

func TestTopHelpAndHold(t *testing.T) {
	sample, v := aSample(1), new(topView)
	v.press('?', sample)
	assert.Contains(t, strings.Join(drawTopText(v, sample, 80, 24), "\n"), "turn the order")
	v.press(escape, sample)
	v.press(' ', sample)
	later := aSample(1)
	later.Devices[0].Name = "another"
	assert.Contains(t, strings.Join(drawTopText(v, later, 80, 24), "\n"), "NVIDIA H200")
	v.press(' ', later)
	assert.Contains(t, strings.Join(drawTopText(v, later, 80, 24), "\n"), "another")
}

func TestTopSaysWhenTheDriverIsSilent(t *testing.T) {
	sample := aSample(1)
	sample.Silent = 15 * time.Second
	assert.Contains(t, drawTopText(new(topView), sample, 80, 24)[0], "the driver has not answered for 15 s")
}

func TestTopOfALivePage(t *testing.T) {
	server := httptest.NewServer(live.Handler(newTracker(t)))
	defer server.Close()
	url := server.URL
	out, errs, code := runs("top", "--source", "sim", "--once", "--live", url)
	require.Zero(t, code, errs)
	assert.Contains(t, out, "1.0 MiB live, peak 1.0 MiB")
	assert.Regexp(t, `1\.0 MiB +1  top_test\.go:\d+ top\.newTracker`, out)
	out, errs, code = runs("top", "--source", "sim", "--json", "--live", url, "--live", "http://127.0.0.1:1/")
	require.Zero(t, code, errs)
	var told topOutput
	require.NoError(t, json.Unmarshal([]byte(out), &told))
	assert.Equal(t, topSchema, told.Schema)
	assert.Equal(t, alloc.MiB, told.Pages[0].Live)
	assert.Equal(t, os.Getpid(), told.Pages[0].Process.PID)
	assert.Len(t, told.Pages[0].Sites, 1)
	assert.NotEmpty(t, told.Pages[1].Error)
	assert.Nil(t, told.Pages[1].Process)
	assert.EqualValues(t, 471859200, told.Devices[0]["memory_used_bytes"])
	assert.Len(t, told.Devices[0]["processes"], 1)
}

// What is behind one address may be several processes: attach serves them so.
func TestTopOfSeveralProcesses(t *testing.T) {
	tr := newTracker(t)
	server := httptest.NewServer(live.Several(func() iter.Seq2[string, live.Source] {
		return func(yield func(string, live.Source) bool) { yield("one", tr) }
	}))
	defer server.Close()
	page := readPage(t.Context(), server.URL)
	require.NoError(t, page.Err)
	assert.Equal(t, alloc.MiB, page.Live)
	none := httptest.NewServer(http.NotFoundHandler())
	defer none.Close()
	assert.ErrorIs(t, readPage(t.Context(), none.URL).Err, errNoPage)
}

func TestTopRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"the output is not a terminal: --once":               {"top"},
		"want a URL":                                         {"top", "--live", "localhost"},
		"the shortest is 10ms":                               {"top", "--interval", "1ms", "--once"},
		`"now" is one word too many: see gpumemtrack top --`: {"top", "now"},
	} {
		_, errs, code := runs(args...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, want)
	}
}

// panicking is a source with a bug.
type panicking struct{ nvml.Source }

func (panicking) Processes(nvml.Device) (map[int]alloc.Bytes, error) { panic("boom") }

func TestTopLeavesTheScreenAfterABug(t *testing.T) {
	src, err := cli.OpenSource("sim")
	require.NoError(t, err)
	devices, err := src.Devices()
	require.NoError(t, err)
	screen := tcell.NewSimulationScreen("")
	require.NoError(t, screen.Init())
	defer screen.Fini()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := newTopWatch(panicking{src}, devices, nil)
	go w.run(ctx, time.Second)
	assert.ErrorContains(t, topLoop(ctx, screen, w, time.Second), "top: a bug: boom")
}

func TestTopLoopEndsWithQ(t *testing.T) {
	src, err := cli.OpenSource("sim")
	require.NoError(t, err)
	devices, err := src.Devices()
	require.NoError(t, err)
	screen := tcell.NewSimulationScreen("")
	require.NoError(t, screen.Init())
	defer screen.Fini()
	w := newTopWatch(src, devices, nil)
	w.sample(t.Context())
	screen.InjectKey(tcell.KeyDown, 0, 0)
	screen.InjectKey(tcell.KeyRune, 'q', 0)
	require.NoError(t, topLoop(t.Context(), screen, w, time.Second))
	cells, width, _ := screen.GetContents()
	var first strings.Builder
	for _, c := range cells[:width] {
		first.Write(c.Bytes)
	}
	assert.Contains(t, first.String(), "gpumemtrack top")
}

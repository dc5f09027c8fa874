package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// hostileNames are names of files and functions that would steer a terminal or a browser, or break a line.
var hostileNames = []string{
	"x\x1b]0;pwn\x07", "\x1b[2J\x1b[31mred", "\u009b31mC1", "a\nb", "a\r\nb", "a\tb", "\u202egpj.exe", "\u2066isolate", "\ufeffbom",
	"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "</script><script>alert(1)//", "'quoted' \"twice\"", `back\slash`, "nul\x00l",
	"\u2028line", "\u200bwidth", "\x7fdelete", strings.Repeat("long", 1250), "{{.Template}}",
	strings.Repeat("wide\x1b", 1<<20/5), notUTF8,
}

// notUTF8 stands for bytes that are not UTF-8, which no JSON encoder writes.
const notUTF8 = "NOT-UTF-8"

var rawBytes = []byte("\xff\xc0\x9b31m")

// hostileFile writes a snapshot of PyTorch whose lines have the names. Its last request failed, and a segment is
// partly free, so that every command has something to say of each.
func hostileFile(t *testing.T) string {
	type m = map[string]any
	var segments, events []m
	for i, name := range hostileNames {
		short := name[:min(len(name), 5000)]
		frames := []m{{"filename": short + ".py", "line": i + 1, "name": name}}
		base := int64(0x7f0000000000) + int64(i)<<30
		events = append(events, m{"action": "segment_alloc", "addr": base, "size": 64 << 20, "stream": 0, "time_us": 2*i + 1},
			m{"action": "alloc", "addr": base, "size": 32 << 20, "stream": 0, "time_us": 2*i + 2, "frames": frames})
		segments = append(segments, m{
			"device": 0, "address": base, "total_size": 64 << 20, "stream": 0, "segment_type": "large", "is_expandable": false,
			"blocks": []m{
				{"address": base, "size": 32 << 20, "requested_size": 32 << 20, "state": "active_allocated", "frames": frames, "user_metadata": short},
				{"address": base + 32<<20, "size": 32 << 20, "requested_size": 0, "state": "inactive", "frames": []m{}},
			},
		})
		if i == len(hostileNames)-1 {
			events = append(events, m{"action": "oom", "addr": 0, "device_free": 0, "size": int64(1) << 40, "stream": 0, "time_us": 99, "frames": frames})
		}
	}
	text, err := json.Marshal(m{"segments": segments, "device_traces": [][]m{events}, "allocator_settings": m{}})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "names.json")
	require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(text, []byte(notUTF8), rawBytes), 0o666))
	return path
}

// assertHarmless checks that a terminal can print the text.
func assertHarmless(t *testing.T, text, what string) {
	t.Helper()
	assert.True(t, utf8.ValidString(text), what)
	for i, r := range text {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028') {
			assert.Failf(t, "control character", "%s: %q", what, text[max(0, i-40):min(len(text), i+40)])
			return
		}
	}
}

// TestNamesDoNoHarm sends hostile names through every command and format.
func TestNamesDoNoHarm(t *testing.T) {
	path := hostileFile(t)
	commands := [][]string{{"explain"}, {"explain", "--at", "peak"}, {"replay"}, {"replay", "--memory", "64MiB"}, {"replay", "--smallest"}}
	for _, by := range []string{"line", "function", "path", "shape", "kind", "section", "device", "stream", "memory", "label"} {
		commands = append(commands, []string{"show", "--top", "0", "--by", by}, []string{"diff", path, "--by", by})
	}
	for _, args := range commands {
		args = append(args, path)
		out, errs, _ := runs(t, "", args...)
		assertHarmless(t, out+errs, fmt.Sprint(args))
		out, _, _ = runs(t, "", append(args, "--json")...)
		assert.True(t, json.Valid([]byte(out)), "%v", args)
		assertHarmless(t, out, fmt.Sprint(args, " --json"))
	}
	for _, end := range []string{".pb.gz", ".pickle", ".trace.json", ".html", ".json"} {
		written := filepath.Join(t.TempDir(), "names"+end)
		out, errs, code := runs(t, "", "convert", path, "-o", written)
		require.Zero(t, code, errs)
		assertHarmless(t, out+errs, end)
		switch text, err := os.ReadFile(written); end {
		case ".html":
			require.NoError(t, err)
			assertHarmless(t, string(text), end)
			assert.NotContains(t, string(text), "<script>alert")
			assert.NotContains(t, string(text), "<img src=x")
			assert.NotContains(t, html.UnescapeString(string(text)), "\x1b")
		case ".trace.json":
			require.NoError(t, err)
			assert.True(t, json.Valid(text))
		default:
			out, errs, code := runs(t, "", "show", written)
			assert.Zero(t, code, errs)
			assertHarmless(t, out+errs, end)
		}
	}
	f, err := files.ReadFile(path)
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	registry.MustRegister(prom.NewCollector(func() *snapshot.Snapshot { return f.Dump.Snapshot }, prom.Config{TopCallSites: 100}))
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, answer.Code)
	assertHarmless(t, answer.Body.String(), "Prometheus")
}

// TestNamesOfADumpDoNoHarm sends hostile names through the commands that read dumps of trackers alone.
func TestNamesOfADumpDoNoHarm(t *testing.T) {
	for _, name := range hostileNames {
		tr := exporttest.Leaky(t)
		section := tr.Section(name)
		b, err := tr.AllocBytes(alloc.KiB, tracker.Activation)
		require.NoError(t, err)
		require.NoError(t, b.Free())
		section.End()
		dump, err := os.ReadFile(dumpFile(t, tr))
		require.NoError(t, err)
		function, err := json.Marshal(name)
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "names.dump.json")
		text := bytes.ReplaceAll(dump, []byte("exporttest.forget"), function[1:len(function)-1])
		require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(text, []byte(notUTF8), rawBytes), 0o666))
		for _, command := range []string{"leaks", "layers"} {
			for _, args := range [][]string{{command, path}, {command, path, "--json"}} {
				out, errs, code := runs(t, "", args...)
				if len(name) < 1<<19 { // a dump with the longest is refused
					require.Zero(t, code, errs)
				}
				assertHarmless(t, out+errs, fmt.Sprintf("%v of %.40q", args, name))
			}
		}
	}
}

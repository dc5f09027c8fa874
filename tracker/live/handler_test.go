package live_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

func trained(t *testing.T) *tracker.MemTracker {
	tr := exporttest.New(t, tracker.Config{Origin: snapshot.Origin{Host: "node-1", Rank: new(3), WorldSize: 8}})
	exporttest.Train(t, tr)
	return tr
}

// get asks for a page of a handler that is mounted somewhere.
func get(t *testing.T, h http.Handler, page string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/debug/gpumem/"+page, nil))
	return w
}

func TestPages(t *testing.T) {
	tr := trained(t)
	h := live.Handler(tr)
	for page, test := range map[string]struct {
		contentType string
		check       func(t *testing.T, body []byte)
	}{
		"": {"text/html; charset=utf-8", func(t *testing.T, body []byte) {
			assert.Contains(t, string(body), `href="profile?seconds=10"`)
			assert.Contains(t, string(body), "rank 3 of 8 on node-1")
		}},
		"profile": {"application/octet-stream", func(t *testing.T, body []byte) {
			u, err := pprof.Read(bytes.NewReader(body))
			require.NoError(t, err)
			assert.NotEmpty(t, u.Rows)
			assert.Equal(t, "node-1", u.Origin.Host)
			assert.Equal(t, new(3), u.Origin.Rank)
		}},
		"profile?debug=1": {"text/plain; charset=utf-8", func(t *testing.T, body []byte) {
			assert.Contains(t, string(body), "(64, 3, 3, 3)")
		}},
		"snapshot": {"application/json", func(t *testing.T, body []byte) {
			s, err := snapshot.Read(bytes.NewReader(body))
			require.NoError(t, err)
			assert.Equal(t, int64(4), s.Live.Count)
		}},
		"snapshot?light=false": {"application/json", func(t *testing.T, body []byte) {
			s, err := snapshot.Read(bytes.NewReader(body))
			require.NoError(t, err)
			assert.NotEmpty(t, slices.Collect(s.Allocations()))
		}},
		"favicon.ico": {"image/svg+xml", func(t *testing.T, body []byte) { assert.Contains(t, string(body), "<svg") }},
		"snapshot?light=1": {"application/json", func(t *testing.T, body []byte) {
			s, err := snapshot.Read(bytes.NewReader(body))
			require.NoError(t, err)
			for range s.Allocations() {
				t.Fatal("a light snapshot has no allocations")
			}
			assert.NotNil(t, s.Cache)
			assert.Empty(t, s.Segments)
		}},
		"dump": {"application/json", func(t *testing.T, body []byte) {
			d, err := snapshot.ReadDump(bytes.NewReader(body))
			require.NoError(t, err)
			assert.Positive(t, len(tables.OfHistory(&d.History).Events))
		}},
		"trace": {"application/json", func(t *testing.T, body []byte) {
			assert.True(t, json.Valid(body))
			assert.Contains(t, string(body), "traceEvents")
		}},
		"memory_viz.pickle": {"application/octet-stream", func(t *testing.T, body []byte) {
			_, u, err := torch.Read(bytes.NewReader(body))
			require.NoError(t, err)
			assert.NotEmpty(t, u.Rows)
		}},
		"report": {"text/html; charset=utf-8", func(t *testing.T, body []byte) {
			assert.Contains(t, string(body), "Live buffers")
		}},
		"leaks": {"application/json", func(t *testing.T, body []byte) {
			assert.JSONEq(t, `{"suspects": [], "growth": []}`, string(body))
		}},
		"leaks?debug=1": {"text/plain; charset=utf-8", func(t *testing.T, body []byte) { assert.Empty(t, body) }},
		"levels": {"application/json", func(t *testing.T, body []byte) {
			var got struct {
				Live   mem.Tally `json:"live"`
				Kinds  map[string]alloc.Bytes
				Closed bool
				Origin string
			}
			require.NoError(t, json.Unmarshal(body, &got))
			assert.Equal(t, int64(4), got.Live.Count)
			assert.Equal(t, map[string]alloc.Bytes{"Parameter": 13824, "Input": 1536 * alloc.KiB, "Tensor": alloc.MiB}, got.Kinds)
			assert.False(t, got.Closed)
			assert.Contains(t, got.Origin, "rank 3 of 8 on node-1")
		}},
		"timeline": {"application/json", func(t *testing.T, body []byte) {
			var got timeline.Timeline
			require.NoError(t, json.Unmarshal(body, &got))
			assert.Equal(t, tr.Snapshot().Peak.Bytes, got.Peak.Bytes)
			assert.Len(t, got.Marks, 4)
		}},
		"metrics?top=2": {"text/plain; version=0.0.4; charset=utf-8; escaping=underscores", func(t *testing.T, body []byte) {
			assert.Contains(t, string(body), `gpumem_live_buffers{device="Simulated GPU",kind="Parameter",ordinal="0",uuid=""} 2`)
			assert.Contains(t, string(body), `call_site="other"`)
		}},
	} {
		t.Run(page, func(t *testing.T) {
			w := get(t, h, page)
			require.Equal(t, http.StatusOK, w.Code, w.Body)
			assert.Equal(t, test.contentType, w.Header().Get("Content-Type"))
			test.check(t, w.Body.Bytes())
		})
	}
}

func TestLeaks(t *testing.T) {
	h := live.Handler(exporttest.Leaky(t))
	var found struct {
		Suspects []leaks.Suspect `json:"suspects"`
		Growth   []leaks.Suspect `json:"growth"`
	}
	require.NoError(t, json.Unmarshal(get(t, h, "leaks").Body.Bytes(), &found))
	require.Len(t, found.Suspects, 1)
	assert.Equal(t, "exporttest.forget", path.Base(found.Suspects[0].CallSite.Function))
	assert.Equal(t, int64(44), found.Suspects[0].Count)
	require.Len(t, found.Growth, 1)
	assert.Equal(t, "exporttest.forget", path.Base(found.Growth[0].CallSite.Function))

	assert.Equal(t, found.Suspects[0].String()+"\n"+found.Growth[0].String()+"\n", get(t, h, "leaks?debug=1").Body.String())
	assert.Contains(t, get(t, h, "metrics?suspects=1").Body.String(), "exporttest.forget\",device=\"Simulated GPU\",ordinal=\"0\",uuid=\"\"} 45056\n")
	assert.NotContains(t, get(t, h, "metrics").Body.String(), "forget")
}

func TestRefusals(t *testing.T) {
	h := live.Handler(trained(t))
	for page, code := range map[string]int{
		"nothing":                   http.StatusNotFound,
		"profile?seconds=-1":        http.StatusBadRequest,
		"profile?seconds=x":         http.StatusBadRequest,
		"profile?seconds=":          http.StatusBadRequest,
		"profile?seconds=5&debug=1": http.StatusBadRequest,
		"profile?debug=perhaps":     http.StatusBadRequest,
		"profile?second=5":          http.StatusBadRequest,
		"snapshot?light=2":          http.StatusBadRequest,
		"snapshot?light=0&light=1":  http.StatusBadRequest,
		"snapshot?%zz":              http.StatusBadRequest,
		"dump?light=1":              http.StatusBadRequest,
		"levels?x=1":                http.StatusBadRequest,
		"?x=1":                      http.StatusBadRequest,
		"metrics?top=100000":        http.StatusBadRequest,
		"marks?after=-3":            http.StatusBadRequest,
		"profile?gc=1":              http.StatusMethodNotAllowed,
	} {
		assert.Equal(t, code, get(t, h, page).Code, page)
	}
	assert.Equal(t, "no parameter \"second\" here: this page takes seconds, debug, gc\n", get(t, h, "profile?second=5").Body.String())
	assert.Equal(t, "POST", get(t, h, "profile?gc=1").Header().Get("Allow"))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://localhost/debug/gpumem/snapshot", nil))
	assert.Equal(t, http.StatusMethodNotAllowed, w.Code, "it reads only")
}

// TestCollectionByPost: a page of another site cannot ask for it.
func TestCollectionByPost(t *testing.T) {
	h := live.Handler(trained(t))
	for site, code := range map[string]int{"": http.StatusOK, "same-origin": http.StatusOK, "cross-site": http.StatusForbidden} {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/debug/gpumem/profile?gc=1&debug=1", nil)
		r.Header.Set("Sec-Fetch-Site", site)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		runtime.ReadMemStats(&after)
		assert.Equal(t, code, w.Code, site)
		if code == http.StatusOK {
			assert.Greater(t, after.NumForcedGC, before.NumForcedGC)
		}
	}
}

func TestHosts(t *testing.T) {
	tr := trained(t)
	strict, named, open := live.Handler(tr), live.Handler(tr, "gpu-7.Example.com"), live.Handler(tr, "*")
	code := func(h http.Handler, host string) int {
		r := httptest.NewRequest(http.MethodGet, "http://localhost/levels", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			assert.NotContains(t, w.Body.String(), "bytes")
			assert.Contains(t, w.Body.String(), " to live.Handler, or gpumemtrack")
		}
		return w.Code
	}
	for _, host := range []string{"localhost", "LOCALHOST:80", "localhost.", "train.localhost:6061", "127.0.0.1:6061", "[::1]:6061", "[::1]", "10.0.0.7:6061", ""} {
		assert.Equal(t, http.StatusOK, code(strict, host), host)
	}
	for _, host := range []string{"rebound.example.com", "rebound.example.com:6061", "localhost.example.com", "127.0.0.1.example.com", "gpu-7.example.com", "::" + "x"} {
		assert.Equal(t, http.StatusForbidden, code(strict, host), host)
		assert.Equal(t, http.StatusOK, code(open, host), host)
	}
	assert.Equal(t, http.StatusOK, code(named, "gpu-7.example.com:6061"))
	assert.Equal(t, http.StatusOK, code(named, "localhost"))
	assert.Equal(t, http.StatusForbidden, code(named, "gpu-8.example.com"))
}

// TestPolicies: no answer may load anything from elsewhere or stand in a frame.
func TestPolicies(t *testing.T) {
	h := live.Handler(trained(t))
	for _, page := range []string{"", "report", "levels", "metrics", "snapshot", "nothing"} {
		policy := get(t, h, page).Header().Get("Content-Security-Policy")
		assert.Contains(t, policy, "default-src 'none'", page)
		assert.Contains(t, policy, "frame-ancestors 'none'", page)
		for _, kind := range []string{"script-src", "default-src"} {
			assert.NotRegexp(t, kind+"[^;]*(unsafe|http|\\*)", policy, page)
		}
	}
}

func TestGzip(t *testing.T) {
	h := live.Handler(trained(t))
	ask := func(page string, accepted ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "http://localhost/"+page, nil)
		r.Header["Accept-Encoding"] = accepted
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, strconv.Itoa(w.Body.Len()), w.Header().Get("Content-Length"))
		return w
	}
	for _, page := range []string{"", "snapshot", "dump", "trace", "memory_viz.pickle", "report", "leaks", "lines"} {
		w := ask(page, "br, gzip;q=0.5")
		assert.Equal(t, "gzip", w.Header().Get("Content-Encoding"), page)
		assert.Equal(t, "Accept-Encoding", w.Header().Get("Vary"), page)
		unpacked, err := gzip.NewReader(w.Body)
		require.NoError(t, err)
		text, err := io.ReadAll(unpacked)
		require.NoError(t, err)
		assert.NotEmpty(t, text, page)
	}
	assert.Empty(t, ask("profile", "gzip").Header().Get("Content-Encoding"), "it is packed already")
	for accepted, want := range map[string]string{"": "", "br": "", "gzip;q=0": "", "*": "gzip", "*;q=0": "", "gzip;q=0, *": "", "GZIP ; q=1": "gzip"} {
		assert.Equal(t, want, ask("snapshot", accepted).Header().Get("Content-Encoding"), accepted)
	}
}

// TestThePageIsSmall: uPlot is most of it.
func TestThePageIsSmall(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
	r.Header.Set("Accept-Encoding", "gzip, deflate, br, zstd") // as browsers do
	w := httptest.NewRecorder()
	live.Handler(trained(t)).ServeHTTP(w, r)
	assert.Less(t, w.Body.Len(), 60_000)
}

// TestOpenMetrics: a scraper that asks for it gets it.
func TestOpenMetrics(t *testing.T) {
	h := live.Handler(trained(t))
	r := httptest.NewRequest(http.MethodGet, "http://localhost/metrics?suspects=0&top=2", nil)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	assert.Regexp(t, "^application/openmetrics-text; version=1.0.0", w.Header().Get("Content-Type"))
	assert.Contains(t, w.Body.String(), "# TYPE gpumem_allocations counter\n")
	assert.True(t, strings.HasSuffix(w.Body.String(), "# EOF\n"))
}

func TestEveryAnswerIsOfNow(t *testing.T) {
	h := live.Handler(trained(t))
	for _, page := range []string{"", "profile", "levels", "metrics", "nothing"} {
		w := get(t, h, page)
		assert.Equal(t, "no-store", w.Header().Get("Cache-Control"), page)
		assert.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"), page)
	}
}

func TestHandlerOfAnyPath(t *testing.T) {
	h := live.Handler(trained(t))
	mux := http.NewServeMux()
	mux.Handle("/gpu/", http.StripPrefix("/gpu/", h))
	mux.Handle("/a/b/", http.StripPrefix("/a/b", h))
	mux.Handle("/", h)
	for _, path := range []string{"/gpu/", "/a/b/", "/", "/gpu/levels", "/a/b/levels", "/levels"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
		assert.Equal(t, http.StatusOK, w.Code, path)
	}
}

// TestNoSource: a program that serves before it has a tracker still starts.
func TestNoSource(t *testing.T) {
	for _, source := range []live.Source{nil, (*tracker.MemTracker)(nil)} {
		for _, page := range []string{"", "levels", "marks", "metrics"} {
			w := httptest.NewRecorder()
			live.Handler(source).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/"+page, nil))
			assert.Equal(t, http.StatusServiceUnavailable, w.Code, page)
			assert.Contains(t, w.Body.String(), "a source that is nil", page)
		}
	}
}

// TestHeadTakesNothing: a HEAD gets the headers, and no work is done for it.
func TestHeadTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := live.Handler(exporttest.New(t, tracker.Config{}))
		start := time.Now()
		for page, contentType := range map[string]string{
			"profile":              "application/octet-stream",
			"profile?seconds=3600": "application/octet-stream",
			"dump":                 "application/json",
			"report":               "text/html; charset=utf-8",
			"leaks":                "application/json",
			"lines":                "application/json",
			"marks":                "text/event-stream",
		} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodHead, "http://localhost/"+page, nil))
			assert.Equal(t, http.StatusOK, w.Code, page)
			assert.Equal(t, contentType, w.Header().Get("Content-Type"), page)
			assert.Empty(t, w.Body.String(), page)
		}
		assert.Zero(t, time.Since(start))
	})
}

func TestClosedTracker(t *testing.T) {
	tr := trained(t)
	h := live.Handler(tr)
	require.NoError(t, tr.Close())
	for page, code := range map[string]int{
		"": http.StatusOK, "profile": http.StatusOK, "snapshot": http.StatusOK, "trace": http.StatusOK,
		"memory_viz.pickle": http.StatusOK, "report": http.StatusOK, "leaks": http.StatusOK, "lines": http.StatusOK, "levels": http.StatusOK, "timeline": http.StatusOK, "metrics": http.StatusOK,
		"dump":  http.StatusServiceUnavailable,
		"marks": http.StatusNoContent, // which tells a browser not to come again
	} {
		w := get(t, h, page)
		assert.Equal(t, code, w.Code, page)
		if page == "dump" {
			assert.Contains(t, w.Body.String(), "closed")
			assert.Empty(t, w.Header().Get("Content-Disposition"), "the error is no file")
		}
	}
}

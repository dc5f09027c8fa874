package viewer_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/recordings"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/viewer"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// trained returns the dump of a small program that trains.
func trained(t testing.TB) *snapshot.Dump {
	t.Helper()
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	return tr.Dump()
}

func sourceOf(name string, d *snapshot.Dump) viewer.Source {
	return viewer.Source{Name: name, Read: func(context.Context, *viewer.Progress) (*files.File, error) {
		return &files.File{Format: "dump", Usage: new(export.Usage), Dump: d}, nil
	}}
}

// serving returns a viewer that has read its sources, and its address.
func serving(t testing.TB, sources ...viewer.Source) (*viewer.Viewer, string) {
	t.Helper()
	v := viewer.New(viewer.Config{Version: "test"})
	for _, s := range sources {
		v.Add(s)
	}
	server := httptest.NewServer(v)
	t.Cleanup(server.Close)
	_ = v.Run(t.Context())
	return v, server.URL
}

// get asks with the token.
func get(t testing.TB, v *viewer.Viewer, address string) (code int, contentType, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+v.Token())
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, answer.Header.Get("Content-Type"), string(text)
}

func getJSON(t testing.TB, v *viewer.Viewer, address string) map[string]any {
	t.Helper()
	code, contentType, body := get(t, v, address)
	require.Equal(t, http.StatusOK, code, body)
	require.Equal(t, "application/json", contentType)
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &out))
	return out
}

// routes are all routes with parameters that they accept.
var routes = []string{
	"state", "names?lines=0,1&kinds=0", "track?track=0.0", "curve?track=0.0&columns=16",
	"moment?track=0.0&moment=3", "moment?track=0.0&x=0.5",
	"tile?track=0.0&columns=64&rows=64&y1=100000000", "bands?track=0.0&moment=3", "allocation?track=0.0&id=0",
	"allocations?track=0.0", "allocations?track=0.0&moment=4&sort=life", "stack?track=0.0&stack=0", "segments?track=0.0&moment=5",
	"flame?track=0.0", "flame?track=0.0&weight=lifetime&axis=time", "table?track=0.0", "table?track=0.0&by=size&sort=name",
}

// with adds a parameter to a route.
func with(route, parameter string) string {
	if strings.Contains(route, "?") {
		return route + "&" + parameter
	}
	return route + "?" + parameter
}

func TestEveryRouteAnswers(t *testing.T) {
	v, url := serving(t, sourceOf("rank0", trained(t)))
	for _, route := range routes {
		code, contentType, body := get(t, v, url+"/api/"+route)
		assert.Equal(t, http.StatusOK, code, "%s: %s", route, body)
		if strings.HasPrefix(route, "tile") {
			assert.Equal(t, "application/octet-stream", contentType)
		} else {
			assert.True(t, json.Valid([]byte(body)), route)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodHead, url+"/api/"+with(route, "token="+v.Token()), nil)
		require.NoError(t, err)
		head, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		head.Body.Close()
		assert.Equal(t, http.StatusOK, head.StatusCode, route)
		assert.Positive(t, head.ContentLength, route)
	}
}

func TestOnlyTheTokenIsAnswered(t *testing.T) {
	v, url := serving(t, sourceOf("rank0", trained(t)))
	code := func(method, path, host string, header http.Header) (status int, of http.Header) {
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, nil)
		require.NoError(t, err)
		if host != "" {
			r.Host = host
		}
		maps.Copy(r.Header, header)
		client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		answer, err := client.Do(r)
		require.NoError(t, err)
		answer.Body.Close()
		assert.Empty(t, answer.Header.Get("Access-Control-Allow-Origin"))
		assert.Equal(t, "nosniff", answer.Header.Get("X-Content-Type-Options"))
		assert.Contains(t, answer.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
		return answer.StatusCode, answer.Header
	}
	bearer := http.Header{"Authorization": {"Bearer " + v.Token()}}
	for _, path := range append([]string{"/", "/api/nothing", "/x"}, "/api/"+routes[0], "/api/"+routes[4]) {
		got, _ := code("GET", path, "", nil)
		assert.Equal(t, http.StatusUnauthorized, got, path)
		got, _ = code("GET", path, "", http.Header{"Authorization": {"Bearer " + v.Token()[1:]}})
		assert.Equal(t, http.StatusUnauthorized, got, path)
		got, _ = code("GET", path, "evil.example", bearer)
		assert.Equal(t, http.StatusForbidden, got, path)
		got, _ = code("POST", path, "", bearer)
		assert.Equal(t, http.StatusMethodNotAllowed, got, path)
	}
	got, answer := code("GET", "/?token="+v.Token(), "", nil)
	require.Equal(t, http.StatusSeeOther, got)
	assert.Equal(t, "/", answer.Get("Location"))
	cookies := (&http.Response{Header: answer}).Cookies()
	require.Len(t, cookies, 1)
	cookie := cookies[0]
	assert.True(t, cookie.HttpOnly)
	assert.Equal(t, http.SameSiteLaxMode, cookie.SameSite)
	got, _ = code("GET", "/", "", http.Header{"Cookie": {cookie.Name + "=" + cookie.Value}})
	assert.Equal(t, http.StatusOK, got)
	got, _ = code("GET", "/api/state", "", http.Header{"Cookie": {cookie.Name + "=" + cookie.Value}})
	assert.Equal(t, http.StatusOK, got)
	other := viewer.New(viewer.Config{})
	assert.NotEqual(t, v.Token(), other.Token())
}

func TestWrongParametersAreNamed(t *testing.T) {
	v, url := serving(t, sourceOf("rank0", trained(t)), viewer.Source{Name: "torn", Read: func(context.Context, *viewer.Progress) (*files.File, error) {
		return nil, errors.New("torn: the file is torn")
	}})
	for request, want := range map[string]string{
		"state?x=1":                                         `no parameter "x" here`,
		"tile?track=0.0":                                    "columns=0, rows=0: want at least one of each",
		"tile?track=0.0&columns=2048&rows=2048":             "a product of at most",
		"tile?track=0.0&columns=9&rows=9":                   "want y1 above y0",
		"tile?track=0.0&columns=9&rows=9&y1=NaN":            `y1="NaN": want a number`,
		"tile?track=0.0&columns=9&rows=9&y1=9&x0=3&x1=2":    "want x1 above x0",
		"tile?track=0.0&columns=9&rows=9&y1=9&axis=space":   `axis="space": want event, time`,
		"tile?track=zero":                                   `track="zero": want the number of a file`,
		"moment?track=0.0&moment=1&x=1":                     "want one of them",
		"curve?track=0.0":                                   "columns=0: want at least 1",
		"table?track=0.0&moment=999999":                     `moment="999999": want a number from 0 to`,
		"table?track=0.0&by=color":                          `by="color": want line, kind, stack, size`,
		"table?track=0.0&stack=1":                           "want stack and depth together",
		"table?track=0.0&line=-1":                           `line="-1": want a number`,
		"table?track=0.0" + strings.Repeat("&line=1", 65):   "line is there 65 times: want at most 64",
		"table?track=0.0&text=" + strings.Repeat("x", 1001): "text has 1001 bytes",
		"table?track=0.0&track=0.1":                         "track is there 2 times",
		"table?track=0.0&limit=0":                           "limit=0: want at least 1",
		"flame?track=0.0&limit=100000":                      "want a number from 0 to 10000",
		"segments?track=0.0&moment=0&width=1":               "want a number from 16 to 4096",
		"bands?track=0.0&moment=0&y0=4&y1=3":                "want y1 not below y0",
		"names?lines=1,x":                                   `lines: "x" is not a number`,
		"allocations?track=0.0&moment=1&x0=1":               "want moment, or x0 and x1",
		"allocation?track=0.0&id=-4":                        `id="-4": want a number`,
	} {
		code, _, body := get(t, v, url+"/api/"+request)
		assert.Equal(t, http.StatusBadRequest, code, request)
		assert.Contains(t, body, want, request)
	}
	for request, want := range map[string]string{
		"nothing": `no route "nothing"`, "track?track=7.0": "there is no file 7", "track?track=0.9": "file 0 has no track 9", "track?track=1.0": "file 1 could not be read",
		"allocation?track=0.0&id=100000": "has no allocation 100000", "stack?track=0.0&stack=5000": "has no stack 5000", "early?file=0": "no early table",
	} {
		code, _, body := get(t, v, url+"/api/"+request)
		assert.Equal(t, http.StatusNotFound, code, request)
		assert.Contains(t, body, want, request)
	}
}

// tile is a tile as a script reads it.
type tile struct {
	columns, rows, items                            int
	view                                            [4]float64
	level, passedBytes, offset, bytes               []float64
	moment, passed, from, to, count, id, line, kind []uint32
}

func readTile(t testing.TB, body string) (out tile) {
	t.Helper()
	b := []byte(body)
	u32 := func() uint32 {
		n := binary.LittleEndian.Uint32(b)
		b = b[4:]
		return n
	}
	floats := func(n int) (list []float64) {
		for range n {
			list = append(list, math.Float64frombits(binary.LittleEndian.Uint64(b)))
			b = b[8:]
		}
		return list
	}
	numbers := func(n int) (list []uint32) {
		for range n {
			list = append(list, u32())
		}
		if n%2 == 1 {
			require.Zero(t, u32())
		}
		return list
	}
	require.Equal(t, "GMT1", body[:4])
	u32()
	out.columns, out.rows, out.items = int(u32()), int(u32()), int(u32())
	copy(out.view[:], floats(4))
	out.level, out.passedBytes, out.offset, out.bytes = floats(out.columns), floats(out.columns), floats(out.items), floats(out.items)
	out.moment, out.passed = numbers(out.columns), numbers(out.columns)
	out.from, out.to, out.count, out.id, out.line, out.kind = numbers(out.items), numbers(out.items), numbers(out.items), numbers(out.items), numbers(out.items), numbers(out.items)
	require.Empty(t, b)
	return out
}

// TestTileAgreesWithTheOthers: a column of a tile, the curve, the table, the flame graph and the segments have one sum.
func TestTileAgreesWithTheOthers(t *testing.T) {
	v, url := serving(t, sourceOf("rank0", trained(t)))
	for _, filter := range []string{"", "&min_bytes=1000000", "&text=main", "&kind=1&kind=2", "&max_life=0.001"} {
		_, _, body := get(t, v, url+"/api/tile?track=0.0&columns=33&rows=50&y1=1e12"+filter)
		got := readTile(t, body)
		sums := make([]float64, got.columns)
		for i := range got.items {
			for c := got.from[i]; c < got.to[i]; c++ {
				sums[c] += got.bytes[i]
			}
		}
		assert.Equal(t, got.level, sums)
		curve := getJSON(t, v, url+"/api/curve?track=0.0&columns=33"+filter)
		for c, moment := range got.moment {
			assert.EqualValues(t, moment, curve["moment"].([]any)[c])
			assert.EqualValues(t, got.level[c], curve["high"].([]any)[c])
			levels := getJSON(t, v, fmt.Sprintf("%s/api/moment?track=0.0&moment=%d%s", url, moment, filter))
			assert.EqualValues(t, got.level[c], levels["live_bytes"])
			assert.Equal(t, curve["reserved"].([]any)[c], levels["reserved_bytes"])
			at := fmt.Sprintf("track=0.0&moment=%d%s", moment, filter)
			for _, by := range []string{"line", "kind", "stack", "size"} {
				table := getJSON(t, v, url+"/api/table?limit=1000&by="+by+"&"+at)
				assert.EqualValues(t, got.level[c], table["total"].(map[string]any)["live_bytes"], by)
				var rows float64
				for _, row := range table["rows"].([]any) {
					rows += row.(map[string]any)["live_bytes"].(float64)
				}
				assert.EqualValues(t, got.level[c], rows, by)
			}
			assert.EqualValues(t, got.level[c], getJSON(t, v, url+"/api/flame?"+at)["total"])
			assert.EqualValues(t, got.level[c], getJSON(t, v, url+"/api/allocations?"+at)["bytes"])
			var blocks float64
			m := getJSON(t, v, url+"/api/segments?width=4096&"+at)
			for _, s := range m["segments"].([]any) {
				var all float64
				for _, b := range s.(map[string]any)["blocks"].([]any) {
					all += b.([]any)[1].(float64)
				}
				blocks += all
				assert.EqualValues(t, s.(map[string]any)["bytes"], all, "the blocks tile their segment")
			}
			assert.EqualValues(t, m["reserved_bytes"], blocks)
			break
		}
	}
}

func TestFilesAreShownAsTheyAreRead(t *testing.T) {
	d := trained(t)
	release := make(chan struct{})
	slow := viewer.Source{Name: "slow", Size: 1000, Read: func(_ context.Context, p *viewer.Progress) (*files.File, error) {
		p.Bytes(400)
		p.Early(d.Snapshot)
		<-release
		return &files.File{Format: "dump", Dump: d}, nil
	}}
	v := viewer.New(viewer.Config{})
	for _, s := range []viewer.Source{slow, sourceOf("quick", d), {Name: "profile", Read: func(context.Context, *viewer.Progress) (*files.File, error) {
		return &files.File{Format: "pprof profile"}, nil
	}}} {
		v.Add(s)
	}
	server := httptest.NewServer(v)
	t.Cleanup(server.Close)
	ended := make(chan error)
	go func() { ended <- v.Run(t.Context()) }()
	states := func(s map[string]any) (out []string) {
		for _, f := range s["files"].([]any) {
			out = append(out, f.(map[string]any)["state"].(string))
		}
		return out
	}
	seq := 0
	waitFor := func(file int, want string) map[string]any {
		for {
			s := getJSON(t, v, fmt.Sprintf("%s/api/state?after=%d", server.URL, seq))
			seq = int(s["seq"].(float64))
			if f := s["files"].([]any)[file].(map[string]any); f["state"] == want && (file > 0 || want != "reading" || f["early"].(bool)) {
				return s
			}
		}
	}
	s := waitFor(0, "reading")
	slowFile := s["files"].([]any)[0].(map[string]any)
	assert.EqualValues(t, 400, slowFile["bytes_done"])
	assert.EqualValues(t, 1000, slowFile["bytes_total"])
	early := getJSON(t, v, server.URL+"/api/early?file=0")
	assert.EqualValues(t, d.Snapshot.Live.Bytes, early["bytes"])
	code, _, body := get(t, v, server.URL+"/api/track?track=0.0")
	assert.Equal(t, http.StatusConflict, code)
	assert.Contains(t, body, "still being read")
	close(release)
	require.NoError(t, <-ended)
	s = getJSON(t, v, server.URL+"/api/state")
	assert.Equal(t, []string{"ready", "ready", "failed"}, states(s))
	assert.Equal(t, true, s["done"])
	assert.Contains(t, s["files"].([]any)[2].(map[string]any)["error"], "profile is a pprof profile: it has no single allocations")
}

func TestRunSaysWhyNothingWasRead(t *testing.T) {
	v := viewer.New(viewer.Config{})
	assert.ErrorContains(t, v.Run(t.Context()), "no file to show")
	broken := errors.New("x is torn")
	for range 7 {
		v.Add(viewer.Source{Name: "x", Read: func(context.Context, *viewer.Progress) (*files.File, error) { return nil, broken }})
	}
	err := v.Run(t.Context())
	require.ErrorIs(t, err, broken)
	assert.Equal(t, 5, strings.Count(err.Error(), "torn"))
	assert.Equal(t, "viewer of 7 files, 0 ready, 7 failed", v.String())
	ctx, stop := context.WithCancel(t.Context())
	stop()
	v.Add(sourceOf("y", trained(t)))
	assert.ErrorIs(t, v.Run(ctx), context.Canceled)
}

// TestManyClientsWhileFilesAreRead has value under the race detector.
func TestManyClientsWhileFilesAreRead(t *testing.T) {
	d := trained(t)
	v := viewer.New(viewer.Config{})
	for i := range 8 {
		v.Add(sourceOf(fmt.Sprint("rank", i), d))
	}
	server := httptest.NewServer(v)
	t.Cleanup(server.Close)
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			for i, route := range routes {
				route = strings.Replace(route, "track=0.", fmt.Sprintf("track=%d.", (c+i)%8), 1)
				code, _, body := get(t, v, server.URL+"/api/"+route)
				assert.Contains(t, []int{http.StatusOK, http.StatusConflict}, code, body)
			}
		})
	}
	assert.NoError(t, v.Run(t.Context()))
	clients.Wait()
}

// unreadWriter is the writer of a client that does not read until it is released.
type unreadWriter struct {
	*httptest.ResponseRecorder
	writing, release chan struct{}
}

func (w unreadWriter) Write(b []byte) (int, error) {
	w.writing <- struct{}{}
	<-w.release
	return len(b), nil
}

// TestUnreadAnswersAreBounded: answers that clients do not read count until they are sent; when they are too many, others are
// refused for a while.
func TestUnreadAnswersAreBounded(t *testing.T) {
	v, url := serving(t, sourceOf("rank0", trained(t)))
	w := unreadWriter{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := httptest.NewRequest(http.MethodGet, "http://localhost/api/curve?track=0.0&columns=1000", nil)
		r.Header.Set("Authorization", "Bearer "+v.Token())
		v.ServeHTTP(w, r)
	}()
	<-w.writing
	unread := v.AddUnsent(0)
	assert.Greater(t, unread, int64(1000))
	v.AddUnsent(viewer.MaxUnsent - unread)
	for _, route := range routes {
		code, _, body := get(t, v, url+"/api/"+route)
		assert.Equal(t, http.StatusServiceUnavailable, code, route)
		assert.Contains(t, body, "try again")
	}
	v.AddUnsent(unread - viewer.MaxUnsent)
	close(w.release)
	<-done
	assert.Zero(t, v.AddUnsent(0))
	for _, route := range routes {
		code, _, _ := get(t, v, url+"/api/"+route)
		assert.Equal(t, http.StatusOK, code, route)
	}
}

// TestRecordings shows PyTorch's own recordings, and finds the largest allocations of the peak again.
func TestRecordings(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(recordings.Dir(t), "*.pickle*"))
	require.NoError(t, err)
	for _, path := range paths {
		f, err := files.ReadFile(path)
		require.NoError(t, err)
		v, url := serving(t, viewer.Source{Name: path, Read: func(context.Context, *viewer.Progress) (*files.File, error) { return f, nil }})
		s := getJSON(t, v, url+"/api/track?track=0.0")
		peak := s["peak"].(map[string]any)
		assert.EqualValues(t, f.Dump.Snapshot.Peak.Bytes, peak["bytes"], path)
		assert.EqualValues(t, f.Dump.Snapshot.Live.Bytes, s["end"].(map[string]any)["bytes"], path)
		m := getJSON(t, v, fmt.Sprintf("%s/api/segments?track=0.0&moment=%v", url, s["moments"].(float64)-1))
		assert.EqualValues(t, f.Dump.Snapshot.Reserved, m["reserved_bytes"], path)
		assert.Equal(t, false, m["of_the_end"], path)
		m = getJSON(t, v, url+"/api/segments?track=0.0&moment=0")
		assert.Equal(t, s["reserved_peak_bytes"] == nil && s["moments"].(float64) > 1 && m["known"] == true, m["of_the_end"], path)
		for _, item := range getJSON(t, v, fmt.Sprintf("%s/api/bands?track=0.0&moment=%v&limit=5", url, peak["moment"]))["items"].([]any) {
			band := item.(map[string]any)
			detail := getJSON(t, v, fmt.Sprintf("%s/api/allocation?track=0.0&id=%v", url, band["allocation"]))
			assert.Equal(t, band["bytes"], detail["bytes"])
			hit := getJSON(t, v, fmt.Sprintf("%s/api/bands?track=0.0&moment=%v&y0=%.0f&y1=%.0f", url, peak["moment"], band["offset"], band["offset"]))
			assert.Equal(t, band["allocation"], hit["items"].([]any)[0].(map[string]any)["allocation"])
		}
	}
}

package viewer_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// FuzzRequests: whatever is asked for, the answer is whole, is not larger than the bounds allow, and no error is the
// server's own.
func FuzzRequests(f *testing.F) {
	for _, route := range routes {
		name, query, _ := strings.Cut(route, "?")
		f.Add(name, query)
	}
	for _, query := range []string{
		"track=0.0&columns=2048&rows=128&x0=-1e18&x1=1e18&y0=0&y1=1e18", "track=0.0&columns=1&rows=1&axis=time&x0=1e-300&x1=2e-300&y1=1e-9",
		"track=0.0&columns=5&rows=5&y0=1152921504606846975&y1=1152921504606846976", "track=0.0&columns=5&rows=5&y1=+Inf", "track=0.0&line=4294967295&kind=65535&allocation=4294967295",
		"track=0.0&moment=2147483647&limit=1000&offset=1048576", "track=0.0&stack=2147483647&depth=1048576", "track=0.0&stack=0&depth=0&text=%00%ff", "track=-1.-1&x=%zz",
		"after=-1", "lines=" + strings.Repeat("1,", 600), "track=0.0&weight=lifetime&x0=5&x1=5.0000001&limit=1", "track=99999999999999999999.0",
	} {
		f.Add("tile", query)
		f.Add("table", query)
		f.Add("flame", query)
		f.Add("allocations", query)
		f.Add("names", query)
	}
	v, _ := serving(f, sourceOf("rank0", trained(f)))
	f.Fuzz(func(t *testing.T, name, query string) {
		if name == "state" && strings.Contains(query, "after") {
			t.Skip("it waits for a change")
		}
		r := httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
		r.URL.Path, r.URL.RawQuery = "/api/"+name, query
		r.Header.Set("Authorization", "Bearer "+v.Token())
		w := httptest.NewRecorder()
		v.ServeHTTP(w, r)
		codes := []int{http.StatusOK, http.StatusBadRequest, http.StatusNotFound}
		assert.True(t, slices.Contains(codes, w.Code), "%d: %s", w.Code, w.Body)
		assert.Less(t, w.Body.Len(), 32<<20)
		if w.Code == http.StatusOK && w.Header().Get("Content-Type") == "application/json" {
			assert.True(t, json.Valid(w.Body.Bytes()))
		}
		if w.Code != http.StatusOK {
			assert.NotEmpty(t, strings.TrimSpace(w.Body.String()))
		}
	})
}

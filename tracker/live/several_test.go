package live_test

import (
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// outside is a tracker as it looks from another program: it cannot be told to do anything.
type outside struct{ live.Source }

func TestSeveralSources(t *testing.T) {
	sources := map[string]live.Source{}
	h := live.Several(func() iter.Seq2[string, live.Source] {
		return func(yield func(string, live.Source) bool) {
			for _, name := range slices.Sorted(maps.Keys(sources)) {
				if !yield(name, sources[name]) {
					return
				}
			}
		}
	})
	assert.Equal(t, http.StatusOK, get(t, h, "").Code)
	assert.Contains(t, get(t, h, "").Body.String(), "Nothing has asked for memory yet")
	assert.Equal(t, http.StatusServiceUnavailable, get(t, h, "dump").Code)
	assert.Equal(t, http.StatusOK, get(t, h, "metrics").Code)

	small := exporttest.New(t, tracker.Config{Origin: snapshot.Origin{Program: "a<b>", PID: 7}})
	sources["7-gpu0"] = outside{small}
	assert.Equal(t, "7-gpu0/", get(t, h, "").Header().Get("Location"))
	sources["8-gpu0"] = trained(t)

	list := get(t, h, "")
	assert.Equal(t, http.StatusOK, list.Code)
	for _, want := range []string{`<a href="7-gpu0/"`, `<a href="8-gpu0/"`, "a&lt;b&gt;", "rank 3 of 8 on node-1"} {
		assert.Contains(t, list.Body.String(), want)
	}
	assert.Equal(t, list.Body.String(), get(t, h, "list").Body.String())
	for _, name := range []string{"7-gpu0", "8-gpu0"} {
		alone := live.Handler(sources[name])
		for _, page := range []string{"metrics?top=3", "leaks", "profile?debug=1"} {
			assert.Equal(t, get(t, alone, page).Body.String(), get(t, h, name+"/"+page).Body.String(), "%s of %s", page, name)
		}
		assert.True(t, strings.Contains(get(t, h, name+"/").Body.String(), `href="profile?seconds=10"`), name)
	}
	assert.Equal(t, http.StatusNotFound, get(t, h, "9-gpu0/levelz").Code)
	assert.Equal(t, http.StatusNotFound, get(t, h, "levels").Code)

	all := get(t, h, "metrics?top=3").Body.String()
	assert.Contains(t, all, `gpumem_live_bytes{container="",device="Simulated GPU",kind="Parameter",ordinal="0",pid="7",program="a<b>",uuid=""} 0`)
	assert.Equal(t, 2, strings.Count(all, "\ngpumem_peak_live_bytes{"))
	dump, err := snapshot.ReadDump(get(t, h, "dump").Body)
	require.NoError(t, err)
	assert.Len(t, dump.Others, 1)

	delete(sources, "8-gpu0")
	assert.Equal(t, http.StatusFound, get(t, h, "").Code)
	assert.Equal(t, http.StatusNotFound, get(t, h, "8-gpu0/levels").Code)
}

// TestWhatASourceCannotDo is not on its pages.
func TestWhatASourceCannotDo(t *testing.T) {
	own, other := live.Handler(trained(t)), live.Handler(outside{trained(t)})
	column := `<th id="called">`
	assert.True(t, strings.Contains(get(t, own, "").Body.String(), column))
	assert.False(t, strings.Contains(get(t, other, "").Body.String(), column))
	assert.Equal(t, http.StatusMethodNotAllowed, get(t, own, "profile?gc=1").Code)
	assert.Equal(t, http.StatusBadRequest, get(t, other, "profile?gc=1").Code)
	assert.Equal(t, "no parameter \"gc\" here: this page takes seconds, debug\n", get(t, other, "profile?gc=1").Body.String())
}

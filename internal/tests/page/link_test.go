package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTimelineOpensFromAnotherSite: the address that the program prints is also a link on pages of other sites, such as a
// terminal in a browser. The browser then follows it as a navigation that another site began.
func TestTimelineOpensFromAnotherSite(t *testing.T) {
	url := serveFiles(t, ready("run.json", timeline(t)))
	require.Contains(t, url, "//127.0.0.1:")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<a id="to" href="%s">open</a>`, url)
	}))
	t.Cleanup(other.Close)
	ctx := open(t, strings.Replace(other.URL, "127.0.0.1", "localhost", 1))
	click(t, ctx, "#to")
	waitFor(t, ctx, `location.hostname === "127.0.0.1" && document.body !== null && document.body.innerText !== ""`)
	assert.NotContains(t, evaluate[string](t, ctx, `document.body.innerText`), "token")
	drawn(t, ctx)
}

// TestTimelineOfAWrongAddress: what is wrong in an address counts as left out. An error of what is asked for goes with it.
func TestTimelineOfAWrongAddress(t *testing.T) {
	url := serveFiles(t, ready("run.json", timeline(t)))
	ctx := open(t, url+"#axis=x&colour=x&weight=x&rows=__proto__&sort=x&kind=70000&line=x&line_name=x&frame=1:x&sel=-1&min_bytes=-5&max_life=-1&at=1e300&from=5&to=1&track=x")
	drawn(t, ctx)
	waitFor(t, ctx, `document.querySelectorAll("#table-card tbody tr").length > 2 && document.querySelectorAll("#flame .box").length > 3`)
	assert.True(t, evaluate[bool](t, ctx, `document.getElementById("problem").hidden`))
	evaluate[bool](t, ctx, `(() => { const f = document.getElementById("filter-text"); f.value = "x".repeat(2000); f.form.requestSubmit(); return true; })()`)
	waitFor(t, ctx, `document.getElementById("problem").innerText.includes("2000")`)
	click(t, ctx, "#filter-clear")
	waitFor(t, ctx, `document.getElementById("problem").hidden && document.querySelectorAll("#table-card tbody tr").length > 2`)
}

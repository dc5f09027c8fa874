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

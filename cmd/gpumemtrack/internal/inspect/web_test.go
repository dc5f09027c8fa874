package inspect

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServePage(t *testing.T) {
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	visit := func(url string) error {
		defer stop()
		answer, err := http.Get(url)
		require.NoError(t, err)
		defer answer.Body.Close()
		page, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		assert.Equal(t, "the page", string(page))
		assert.Equal(t, "text/html; charset=utf-8", answer.Header.Get("Content-Type"))

		for host, want := range map[string]int{"example.com": http.StatusForbidden, "localhost": http.StatusOK, "[::1]:80": http.StatusOK} {
			ask, err := http.NewRequest(http.MethodGet, url, nil)
			require.NoError(t, err)
			ask.Host = host
			answer, err := http.DefaultClient.Do(ask)
			require.NoError(t, err)
			answer.Body.Close()
			assert.Equal(t, want, answer.StatusCode, host)
		}
		return errNoBrowser
	}
	require.NoError(t, servePage(ctx, &out, &errs, listener, []byte("the page"), visit))
	assert.Contains(t, out.String(), "http://"+listener.Addr().String()+"/  (Ctrl-C ends it)\n")
	assert.Equal(t, "gpumemtrack: no browser can be opened here: open the address above\n", errs.String())
}

func TestNoBrowser(t *testing.T) {
	for _, name := range []string{"BROWSER", "DISPLAY", "WAYLAND_DISPLAY"} {
		t.Setenv(name, "")
	}
	if len(browsers()) == 0 { // a system without windows
		assert.ErrorIs(t, openBrowser("http://localhost:1/"), errNoBrowser)
	}
	t.Setenv("BROWSER", "/no/such/browser -new")
	assert.Equal(t, []string{"/no/such/browser", "-new"}, browsers()[0])
}

func TestWebShowsOneWholeFile(t *testing.T) {
	path := dumpFile(t, newTracker(t))
	for want, args := range map[string][]string{
		"show --web: name one file":            {"--web", path, path},
		"show --web: --kind is for the table":  {"--web", path, "--kind", "Input"},
		"show --web: --json is for the table":  {"--web", path, "--json"},
		"show --web: listen tcp: address nope": {"--web=nope", path},
		"no such file":                         {"--web", path + ".gone"},
	} {
		_, errs, code := runs(t, "", append([]string{"show"}, args...)...)
		assert.NotZero(t, code)
		assert.Contains(t, errs, want)
	}
}

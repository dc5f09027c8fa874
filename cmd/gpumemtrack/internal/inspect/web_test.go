package inspect

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/viewer"
)

func TestServePage(t *testing.T) {
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	v := viewer.New(viewer.Config{})
	v.Add(viewer.Source{Name: "a file", Read: func(context.Context, *viewer.Progress) (*files.File, error) {
		return &files.File{Dump: newTracker(t).Dump()}, nil
	}})
	visit := func(url string) error {
		defer stop()
		jar, err := cookiejar.New(nil)
		require.NoError(t, err)
		client := http.Client{Jar: jar}
		answer, err := client.Get(url)
		require.NoError(t, err)
		defer answer.Body.Close()
		page, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		assert.Contains(t, string(page), "<!doctype html>")
		assert.Equal(t, "text/html; charset=utf-8", answer.Header.Get("Content-Type"))
		for path, want := range map[string]int{"": http.StatusOK, "api/state": http.StatusOK, "api/nothing": http.StatusNotFound} {
			answer, err := client.Get("http://" + listener.Addr().String() + "/" + path)
			require.NoError(t, err)
			answer.Body.Close()
			assert.Equal(t, want, answer.StatusCode, path)
		}
		for host, want := range map[string]int{"example.com": http.StatusForbidden, "localhost": http.StatusOK, "[::1]:80": http.StatusOK} {
			ask, err := http.NewRequest(http.MethodGet, "http://"+listener.Addr().String()+"/api/state?token="+v.Token(), nil)
			require.NoError(t, err)
			ask.Host = host
			answer, err := http.DefaultClient.Do(ask)
			require.NoError(t, err)
			answer.Body.Close()
			assert.Equal(t, want, answer.StatusCode, host)
		}
		return errNoBrowser
	}
	require.NoError(t, servePage(ctx, &out, &errs, listener, v, visit))
	assert.Contains(t, out.String(), "http://"+listener.Addr().String()+"/?token="+v.Token()+"  (Ctrl-C ends it)\n")
	assert.Equal(t, "gpumemtrack: no browser can be opened here: open the address above\n", errs.String())
}

// TestAFileThatCannotBeReadEndsThePage: unless another one can be.
func TestAFileThatCannotBeReadEndsThePage(t *testing.T) {
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	v := viewer.New(viewer.Config{})
	torn := errors.New("x: the file is torn")
	v.Add(viewer.Source{Name: "x", Read: func(context.Context, *viewer.Progress) (*files.File, error) { return nil, torn }})
	err = servePage(t.Context(), io.Discard, io.Discard, listener, v, func(string) error { return nil })
	assert.ErrorIs(t, err, torn)
}

func TestPageSourcesOfAFolder(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile(dumpFile(t, newTracker(t)))
	require.NoError(t, err)
	for name, content := range map[string][]byte{"rank0.json": text, "rank1.json": text, "notes.txt": []byte("a note"), "train.py": []byte("import torch")} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	sources, err := pageSources(new(cli.App).Reading("show"), []string{dir})
	require.NoError(t, err)
	var names []string
	for _, s := range sources {
		names = append(names, s.Name)
		assert.EqualValues(t, len(text), s.Size)
		f, err := s.Read(t.Context(), nil)
		require.NoError(t, err)
		assert.NotNil(t, f.Dump)
	}
	assert.Equal(t, []string{"rank0.json", "rank1.json"}, names)
	require.NoError(t, os.Remove(filepath.Join(dir, "rank0.json")))
	require.NoError(t, os.Remove(filepath.Join(dir, "rank1.json")))
	_, err = pageSources(new(cli.App).Reading("show"), []string{dir})
	assert.ErrorContains(t, err, "none of the 2 files is a snapshot or dump")
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

func TestWebShowsWholeFiles(t *testing.T) {
	path := dumpFile(t, newTracker(t))
	for want, args := range map[string][]string{
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

// Package page_test opens the pages of this project in a browser.
package page_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// open opens a page in headless Chromium, 1200 pixels wide, for three minutes
// at most, and skips the test where there is none.
func open(t testing.TB, url string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.ExecPath(chromium(t)))
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(1200, 900), chromedp.Navigate(url)))
	return ctx
}

func chromium(t testing.TB) string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no chromium, chromium-browser or google-chrome in PATH")
	return ""
}

// evaluate returns the value of a JavaScript expression, of a promise that which
// it comes to.
func evaluate[T any](t testing.TB, ctx context.Context, script string) T {
	t.Helper()
	value, err := run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	require.NoError(t, err, script)
	return value
}

// run runs a script of the page that the browser shows. On a slow machine it may still be sent to the page that was
// shown before: the browser then refuses it before it has run, so that it can be sent again.
func run[T any](ctx context.Context, script chromedp.Action[T]) (T, error) {
	for {
		value, err := chromedp.Run(ctx, script)
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "Cannot find context with specified id") {
			return value, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// waitFor waits until a JavaScript expression is true, for as long as the
// browser runs.
func waitFor(t testing.TB, ctx context.Context, script string) {
	t.Helper()
	_, err := run(ctx, chromedp.Poll[bool](script, chromedp.WithPollingTimeout(0)))
	require.NoError(t, err, script)
}

// mouse gives mouse events ("mousemove", "click", ...) to what lies at x, y of
// the window, with nothing in between. They come from a script because the
// browser's own input is dropped while a page has not been painted, and misses
// while it scrolls.
func mouse(t testing.TB, ctx context.Context, x, y float64, events ...string) {
	t.Helper()
	list, err := json.Marshal(events)
	require.NoError(t, err)
	evaluate[bool](t, ctx, fmt.Sprintf(`%[1]s.every(event => document.elementFromPoint(%[2]g, %[3]g).dispatchEvent(
		new MouseEvent(event, {clientX: %[2]g, clientY: %[3]g, movementX: 1, bubbles: true, view: window})))`, list, x, y))
}

package watch

import (
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"path"
	"time"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

// serveAttached serves what is watched as a live page until stop is called.
func serveAttached(a *cli.App, address string, handler http.Handler) (stop func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("attach: --live: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintf(a.Stderr, "%s: attach: --live: %v\n", cli.ProgramName, err)
		}
	}()
	fmt.Fprintf(a.Stderr, "live: http://%s/\n", cli.LocalAddress(listener))
	return func() { server.Close() }, nil
}

func attachedHandler(w *attach.Watcher, hosts []string) http.Handler {
	return live.Several(func() iter.Seq2[string, live.Source] {
		return func(yield func(string, live.Source) bool) {
			w.Sync()
			for _, s := range w.Sources() {
				if !yield(s.Name(), s) {
					return
				}
			}
		}
	}, hosts...)
}

// allHandler serves every process. Metrics are those of processes that run: sums over them are then right.
func allHandler(w *attach.Watcher, hosts []string) http.Handler {
	list := func(ended bool) func() iter.Seq2[string, live.Source] {
		return func() iter.Seq2[string, live.Source] {
			return func(yield func(string, live.Source) bool) {
				w.Sync()
				for _, s := range w.Sources() {
					if (ended || s.Ended().IsZero()) && !yield(s.Name(), s) {
						return
					}
				}
			}
		}
	}
	all, metrics := live.Several(list(true), hosts...), live.Several(list(false), hosts...)
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if path.Clean(r.URL.Path) == "/metrics" {
			metrics.ServeHTTP(rw, r)
			return
		}
		all.ServeHTTP(rw, r)
	})
}

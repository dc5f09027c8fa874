package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// serveAttached serves what is watched until stop is called.
func (a *app) serveAttached(address string, w *attach.Watcher) (stop func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("attach: --live: %w", err)
	}
	server := &http.Server{Handler: attachedHandler(w), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintf(a.stderr, "%s: attach: --live: %v\n", programName, err)
		}
	}()
	fmt.Fprintf(a.stderr, "live: http://%s/ (and /dump, /metrics)\n", listener.Addr())
	return func() { server.Close() }, nil
}

func attachedHandler(w *attach.Watcher) http.Handler {
	mux := http.NewServeMux()
	record := func(contentType string, write func(io.Writer, *snapshot.Record) error) http.HandlerFunc {
		return func(out http.ResponseWriter, _ *http.Request) {
			w.Sync()
			r := w.Record()
			if r == nil {
				http.Error(out, "nothing has called the CUDA driver yet", http.StatusServiceUnavailable)
				return
			}
			out.Header().Set("Content-Type", contentType)
			if write(out, r) != nil {
				panic(http.ErrAbortHandler) // so that nobody takes a part for the whole
			}
		}
	}
	mux.HandleFunc("GET /{$}", record("text/html; charset=utf-8", html.Write))
	mux.HandleFunc("GET /dump", record("application/json", func(out io.Writer, r *snapshot.Record) error { return r.WriteJSON(out) }))
	mux.HandleFunc("GET /metrics", func(out http.ResponseWriter, r *http.Request) {
		w.Sync()
		registry := prometheus.NewRegistry()
		for _, s := range w.Sources() {
			labels := prometheus.Labels{"program": s.Origin().Program, "pid": strconv.Itoa(s.Origin().PID)}
			// An earlier process may have had the same number: of two such the larger counts.
			_ = prometheus.WrapRegistererWith(labels, registry).Register(prom.NewCollector(s, prom.Config{TopSites: 20, Suspects: true}))
		}
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(out, r)
	})
	return mux
}

// Serve pretends to train a small network, on the first GPU or else the simulated one, and
// shows its device memory over HTTP:
//
//	go run ./examples/serve
//
//	open http://localhost:6061/debug/gpumem/
//	go tool pprof -top http://localhost:6061/debug/gpumem/profile
//	go tool pprof -top 'http://localhost:6061/debug/gpumem/profile?seconds=5'
//	curl -N http://localhost:6061/debug/gpumem/marks
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "localhost:6061", "address to serve on: keep it off public ones")
	steps := flags.Int("steps", 0, "steps to train; 0 is until interrupted")
	pause := flags.Duration("pause", 50*time.Millisecond, "time between two layers")
	leak := flags.Bool("leak", false, "keep the loss of every step, as a forgotten list would")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}

	tr, err := tracker.New(tracker.Config{Report: io.Discard})
	if err != nil {
		return err
	}
	defer tr.Close()

	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/gpumem/", live.Handler(tr))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer server.Close()
	go server.Serve(listener)
	fmt.Fprintf(stdout, "device memory is shown at http://%s/debug/gpumem/\n", listener.Addr())

	return newTraining(tr, *pause, *leak).run(ctx, *steps)
}

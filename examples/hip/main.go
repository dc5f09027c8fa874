//go:build linux && (amd64 || arm64)

// Hip tracks the memory of an AMD GPU. It loads HIP's library when it starts; hip.go makes an alloc.Device of it.
package main

import (
	"errors"
	"flag"
	"io"
	"log"
	"os"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func main() {
	library := flag.String("library", "libamdhip64.so", "HIP's library: a name or a path")
	ordinal := flag.Int("device", 0, "which GPU")
	flag.Parse()
	if err := run(*library, *ordinal, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(library string, ordinal int, out io.Writer) (err error) {
	device, err := open(library, ordinal)
	if err != nil {
		return err
	}
	tr, err := tracker.New(tracker.Config{Device: device, Report: out})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tr.Close()) }()
	weights, err := tr.Alloc(alloc.Shape{1024, 1024}, alloc.Float32, tracker.Parameter)
	if err != nil {
		return err
	}
	tr.Track()
	return weights.Free()
}

// Record allocates memory of the first GPU, or of the simulated one if there is none, and
// records the GPU's memory meanwhile. It prints the recording and draws it in memory.png.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func main() {
	dir := flag.String("dir", ".", "directory of the chart and the samples")
	pause := flag.Duration("pause", 300*time.Millisecond, "time between steps")
	flag.Parse()
	if err := run(*dir, *pause, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(dir string, pause time.Duration, out io.Writer) (err error) {
	tr, err := tracker.New(tracker.Config{Report: io.Discard})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tr.Close()) }()

	// nvml.FromDevices asks the device that the program has open. Config{} asks the
	// driver instead, for every process there is.
	rec, err := nvml.NewRecorder(nvml.Config{
		Source: nvml.FromDevices(tr.Device()), Interval: 20 * time.Millisecond,
		Files: []string{filepath.Join(dir, "memory.jsonl")}, Overwrite: true,
	})
	if err != nil {
		return err
	}
	err = rec.Record(context.Background(), func(context.Context) error { return train(tr, pause) })
	if err != nil {
		return err
	}

	recording := rec.Recording()
	for _, s := range recording.Series {
		fmt.Fprintln(out, s)
		fmt.Fprintf(out, "%d samples in %v\n", s.Len(), s.Duration().Round(time.Second/10))
	}
	return chart.WriteFile(filepath.Join(dir, "memory.png"), true, recording.Series, chart.Config{Title: "examples/record"})
}

// train takes five batches of 384 MiB, one after another, two at a time.
func train(tr *tracker.MemTracker, pause time.Duration) error {
	var last *tracker.Buffer
	for range 5 {
		batch, err := tr.Alloc(alloc.Shape{128, 3, 512, 512}, alloc.Float32, tracker.Input)
		if err != nil {
			return err
		}
		time.Sleep(pause)
		if err := last.Free(); err != nil {
			return err
		}
		last = batch
	}
	return last.Free()
}

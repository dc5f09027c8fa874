// Command gpurun measures, on the first CUDA device, what the documentation
// says of a real GPU: the driver's latencies and the cache's against them, the
// tracker's share, the memory that no ledger explains, managed memory as
// NVML shows it, what NVML's queries cost, what a recorder sees, and the device's
// clock against the host's. scripts/gpu-run packs it.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpurun:", err)
		os.Exit(1)
	}
}

// run opens NVML before the device, to see what the context takes. If a section fails, the others still run.
func run(out io.Writer) error {
	v, err := openView()
	if err != nil {
		fmt.Fprintln(out, "NVML cannot be asked, so there is nothing from it below:", err)
	} else {
		defer v.source.Close()
	}
	var errs []error
	for _, s := range []struct {
		title   string
		measure func(io.Writer, *view) error
	}{
		{"Driver", driver},
		{"Memory: the driver against the ledger", memory},
		{"Latency of an alloc and free pair, median (goal: driver / cache at least 100)", latency},
		{"NVML's queries, median", queries},
		{"Events against the host's clock", events},
		{"A recorder of this process", recorder},
		{"Managed memory", managed},
	} {
		errs = append(errs, section(out, s.title, func(w io.Writer) error { return s.measure(w, v) }))
	}
	return errors.Join(errs...)
}

// section prints a title and a table; measure separates its cells by tabs.
func section(out io.Writer, title string, measure func(io.Writer) error) (err error) {
	fmt.Fprintf(out, "\n%s\n", title)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer func() {
		if err != nil {
			fmt.Fprintf(w, "FAILED: %v\n", err)
			err = fmt.Errorf("%s: %w", title, err)
		}
		err = errors.Join(err, w.Flush())
	}()
	return measure(w)
}

// driver says what the driver has.
func driver(w io.Writer, _ *view) error {
	devices, err := cuda.Devices()
	if err != nil {
		return err
	}
	for i, d := range devices {
		fmt.Fprintf(w, "device %d\t%s, %s, %v\n", i, d.Name, d.UUID, d.Memory)
	}
	return nil
}

// Command gpurun measures, on the first CUDA device, what the documentation
// says of a real GPU: the driver's latencies and the cache's against them, the
// tracker's share, the memory that nobody's ledger explains, managed memory as
// NVML shows it, what NVML's queries cost, what a recorder sees, and the device's
// clock against the host's. scripts/gpu-run packs it.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/nvml"
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

// view is NVML's view of the first CUDA device; a nil view has none.
type view struct {
	source nvml.Source
	device nvml.Device
}

func openView() (*view, error) {
	source, err := nvml.Open()
	if err != nil {
		return nil, err
	}
	device, err := firstDevice(source)
	if err != nil {
		return nil, errors.Join(err, source.Close())
	}
	return &view{source, device}, nil
}

// firstDevice goes by the UUID: CUDA and NVML need not number alike.
func firstDevice(source nvml.Source) (nvml.Device, error) {
	devices, err := source.Devices()
	if err != nil {
		return nvml.Device{}, err
	}
	seen, err := cuda.Devices()
	if err != nil {
		return nvml.Device{}, err
	}
	return nvml.Pick(devices, seen[0].UUID)
}

// used is what NVML calls used of the whole device.
func (v *view) used() (alloc.Bytes, error) {
	if v == nil {
		return 0, nvml.ErrNotAvailable
	}
	readings := make([]nvml.Reading, 1)
	v.source.Read([]nvml.Device{v.device}, []nvml.Quantity{nvml.MemoryUsed}, readings)
	n, ok := readings[0].Bytes(nvml.MemoryUsed)
	if !ok {
		return 0, errors.Join(readings[0].Err, errors.New("no figure"))
	}
	return n, nil
}

// own is what NVML calls used by this process.
func (v *view) own() (alloc.Bytes, error) {
	if v == nil {
		return 0, nvml.ErrNotAvailable
	}
	return nvml.MemoryOf(v.source, v.device, nvml.Self())
}

// cell prints a figure in MiB, so that a reader can subtract, or why there is none.
func cell(n alloc.Bytes, err error) string {
	if err != nil {
		return "unknown: " + err.Error()
	}
	return mebibytes(n)
}

func mebibytes(n alloc.Bytes) string { return fmt.Sprintf("%.1f MiB", float64(n)/float64(alloc.MiB)) }

// driver says what the driver has.
func driver(w io.Writer, _ *view) error {
	devices, err := cuda.Devices()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "CUDA version of the driver\t%s\n", devices[0].CUDA)
	for _, d := range devices {
		fmt.Fprintf(w, "device %d\t%s, %s, PCI bus %s, compute capability %s, %v\n", d.Ordinal, d.Name, d.UUID, d.PCIBus, d.ComputeCapability, d.Memory)
	}
	return nil
}

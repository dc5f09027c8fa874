package main

import (
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
)

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

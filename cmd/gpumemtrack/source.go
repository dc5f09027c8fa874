package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

func addSourceFlag(cmd *cobra.Command, source *string) {
	cmd.Flags().StringVar(source, "source", "auto",
		"`WHERE` figures come from: auto, nvml (the driver's library), smi (the nvidia-smi program) or sim (a simulated GPU)")
	complete(cmd, "source", "auto", "nvml", "smi", "sim")
}

// openSource opens what --source names.
func openSource(name string) (nvml.Source, error) {
	switch name {
	case "auto":
		return withHint(nvml.Open())
	case "nvml":
		return withHint(nvml.OpenLibrary(""))
	case "smi":
		return withHint(nvml.OpenSMI(""))
	case "sim":
		gpu, err := sim.New(sim.Config{})
		if err != nil {
			return nil, err
		}
		return nvml.FromDevices(gpu), nil
	}
	return nil, usageError("--source %s: want auto, nvml, smi or sim", name)
}

func withHint(src nvml.Source, err error) (nvml.Source, error) {
	if errors.Is(err, nvml.ErrNotAvailable) {
		err = fmt.Errorf("%w (--source sim shows a simulated GPU)", err)
	}
	return src, err
}

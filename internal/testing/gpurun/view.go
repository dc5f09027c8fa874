package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

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
	for _, d := range devices {
		if d.UUID == seen[0].UUID {
			return d, nil
		}
	}
	return nvml.Device{}, fmt.Errorf("%s: %w", seen[0].UUID, nvml.ErrNoDevice)
}

// used is what NVML calls used of the whole device.
func (v *view) used() (alloc.Bytes, error) {
	if v == nil {
		return 0, nvml.ErrNotAvailable
	}
	readings := make([]nvml.Reading, 1)
	v.source.Read([]nvml.Device{v.device}, []nvml.Quantity{nvml.MemoryUsed}, readings)
	n, ok := readings[0].Value(nvml.MemoryUsed)
	if !ok {
		return 0, errors.Join(readings[0].Err, errors.New("no value"))
	}
	return alloc.Bytes(n), nil
}

// own is what NVML calls used by this process.
func (v *view) own() (alloc.Bytes, error) {
	if v == nil {
		return 0, nvml.ErrNotAvailable
	}
	return nvml.MemoryOf(v.source, v.device, nvml.Target{PID: os.Getpid()})
}

// cell prints a value in MiB, so that a reader can subtract, or why there is none.
func cell(n alloc.Bytes, err error) string {
	if err != nil {
		return "unknown: " + err.Error()
	}
	return mebibytes(n)
}

func mebibytes(n alloc.Bytes) string { return fmt.Sprintf("%.1f MiB", float64(n)/float64(alloc.MiB)) }

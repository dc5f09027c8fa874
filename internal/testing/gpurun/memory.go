package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// memory shows what the driver has in use that neither ledger nor context explains.
func memory(w io.Writer, v *view) (err error) {
	idle, idleErr := v.used()
	dev, err := cuda.Open(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	opened, err := dev.MemInfo()
	if err != nil {
		return err
	}
	withContext, contextErr := v.used()

	tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tr.Close()) }()
	var tensors []*tracker.Buffer
	defer func() {
		for _, tensor := range tensors {
			err = errors.Join(err, tensor.Free())
		}
	}()
	for i := range 200 { // of many sizes, 767 MiB
		tensor, err := tr.Alloc(alloc.Shape{i + 1, 100, 100}, alloc.Float32, tracker.Parameter)
		if err != nil {
			return err
		}
		tensors = append(tensors, tensor)
	}
	full, err := dev.MemInfo()
	if err != nil {
		return err
	}
	now, nowErr := v.used()
	s := tr.Snapshot()
	fmt.Fprintf(w, "device\t%v\n", dev)
	fmt.Fprintf(w, "total, as cuMemGetInfo says\t%s\n", mebibytes(full.Total))
	fmt.Fprintf(w, "used before this process's context, as NVML says\t%s\n", cell(idle, idleErr))
	fmt.Fprintf(w, "used with the context, as NVML says\t%s\n", cell(withContext, contextErr))
	fmt.Fprintf(w, "the context, the difference\t%s\n", cell(withContext-idle, errors.Join(idleErr, contextErr)))
	fmt.Fprintf(w, "in the ledger, 200 tensors\t%s\n", mebibytes(s.Live.Bytes))
	fmt.Fprintf(w, "reserved by the cache\t%s\n", mebibytes(s.Reserved))
	fmt.Fprintf(w, "what cuMemGetInfo says they took\t%s\n", mebibytes(full.Used()-opened.Used()))
	fmt.Fprintf(w, "used now, as NVML says\t%s\n", cell(now, nowErr))
	fmt.Fprintf(w, "untracked: used now, less with the context, less reserved\t%s\n",
		cell(now-withContext-s.Reserved, errors.Join(nowErr, contextErr)))
	fmt.Fprintf(w, "untracked, as the tracker says: context, libraries, others\t%s\n", mebibytes(s.Untracked()))
	fmt.Fprintf(w, "this process, as NVML says\t%s\n", cell(v.own()))
	fmt.Fprintf(w, "this process, as nvidia-smi says\t%s\n", cell(smi()))
	return nil
}

// smi is what nvidia-smi calls used by this process, in whole MiB.
func smi() (alloc.Bytes, error) {
	out, err := exec.Command("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").Output()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(out)) {
		var pid int
		var used alloc.Bytes
		if n, _ := fmt.Sscanf(line, "%d, %d", &pid, &used); n == 2 && pid == os.Getpid() {
			return used * alloc.MiB, nil
		}
	}
	return 0, fmt.Errorf("process %d is not in its list, or without a value", os.Getpid())
}

// queries times what a recorder would ask again and again.
func queries(w io.Writer, v *view) error {
	if v == nil {
		return nvml.ErrNotAvailable
	}
	devices, readings := []nvml.Device{v.device}, make([]nvml.Reading, 1)
	memory, err := median(func() error {
		v.source.Read(devices, []nvml.Quantity{nvml.MemoryUsed}, readings)
		return readings[0].Err
	})
	if err != nil {
		return err
	}
	processes, err := median(func() error {
		_, err := v.source.Processes(v.device)
		return err
	})
	fmt.Fprintf(w, "source\t%s\nmemory\t%v\nprocesses\t%v\n", v.source.Name(), memory, processes)
	return err
}

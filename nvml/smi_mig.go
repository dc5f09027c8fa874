package nvml

import (
	"encoding/xml"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// What nvidia-smi -L prints of a GPU, and of each of its MIG devices.
var (
	listedGPU = regexp.MustCompile(`^GPU \d+: (.*) \(UUID: (\S+)\)`)
	listedMIG = regexp.MustCompile(`^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (\S+)\)`)
)

// withMIG puts MIG devices behind their GPUs. Those that cannot be listed are left out.
func (s *smi) withMIG(gpus []Device) []Device {
	out, err := s.run("-L")
	if err != nil {
		return gpus
	}
	parts := migDevices(string(out), gpus)
	var devices []Device
	for _, gpu := range gpus {
		devices = append(append(devices, gpu), parts[gpu.UUID]...)
	}
	return devices
}

// migDevices reads the list of nvidia-smi -L, by the GPU's UUID.
func migDevices(list string, gpus []Device) map[string][]Device {
	found := make(map[string][]Device)
	var parent *Device
	for line := range strings.Lines(list) {
		if gpu := listedGPU.FindStringSubmatch(line); gpu != nil {
			parent = nil
			if i := slices.IndexFunc(gpus, func(d Device) bool { return d.UUID == gpu[2] }); i >= 0 {
				parent = &gpus[i]
			}
		}
		mig := listedMIG.FindStringSubmatch(line)
		if mig == nil || parent == nil {
			continue
		}
		number, err := strconv.Atoi(mig[2])
		if err != nil {
			continue
		}
		found[parent.UUID] = append(found[parent.UUID], Device{
			Index: parent.Index, UUID: mig[3], Name: parent.Name + " MIG " + mig[1],
			BusID: parent.BusID, Parent: parent.UUID, MIG: number + 1,
		})
	}
	return found
}

// smiLog is the part of nvidia-smi -q -x that only this form has: MIG devices'
// memory and processes.
type smiLog struct {
	GPUs []struct {
		UUID      string   `xml:"uuid"`
		MIG       []smiMIG `xml:"mig_devices>mig_device"`
		Processes []struct {
			Instance string `xml:"gpu_instance_id"`
			Compute  string `xml:"compute_instance_id"`
			PID      string `xml:"pid"`
			Memory   string `xml:"used_memory"`
		} `xml:"processes>process_info"`
	} `xml:"gpu"`
}

type smiMIG struct {
	Index    int    `xml:"index"`
	Instance string `xml:"gpu_instance_id"`
	Compute  string `xml:"compute_instance_id"`
	Memory   struct {
		Total    string `xml:"total"`
		Reserved string `xml:"reserved"`
		Used     string `xml:"used"`
		Free     string `xml:"free"`
	} `xml:"fb_memory_usage"`
}

func (s *smi) log() (*smiLog, error) {
	out, err := s.run("-q", "-x")
	if err != nil {
		return nil, err
	}
	log := new(smiLog)
	if err := xml.Unmarshal(out, log); err != nil {
		return nil, fmt.Errorf("nvidia-smi -q -x: %w", err)
	}
	return log, nil
}

// find returns the places of a MIG device in the log: its GPU's and its own there.
func (l *smiLog) find(d Device) (gpu, mig int, err error) {
	for gpu, g := range l.GPUs {
		if g.UUID != d.Parent {
			continue
		}
		mig = slices.IndexFunc(g.MIG, func(m smiMIG) bool { return m.Index == d.MIG-1 })
		if mig >= 0 {
			return gpu, mig, nil
		}
	}
	return 0, 0, errNoMIG
}

var errNoMIG = errors.New("nvidia-smi does not list this MIG device any more")

// readMIG reads the memory of the MIG devices among devices: they have no sensors.
func (s *smi) readMIG(devices []Device, want quantitySet, into []Reading) {
	if want&memoryQuants == 0 {
		return
	}
	log, err := s.log()
	for i, d := range devices {
		if d.Parent == "" {
			continue
		}
		if into[i].Err = err; err != nil {
			continue
		}
		gpu, mig, err := log.find(d)
		if err != nil {
			into[i].Err = err
			continue
		}
		m := log.GPUs[gpu].MIG[mig].Memory
		for q, text := range map[Quantity]string{MemoryTotal: m.Total, MemoryUsed: m.Used, MemoryFree: m.Free, DriverReserved: m.Reserved} {
			if v, ok := figure(strings.TrimSuffix(text, " MiB"), q); ok {
				into[i].Set(q, v*smiMiB)
			}
		}
		if _, ok := into[i].Value(MemoryUsed); !ok {
			into[i].Err = noFigureIn("fb_memory_usage", m.Used)
		}
	}
}

func (s *smi) processesOfMIG(d Device) (map[int]alloc.Bytes, error) {
	log, err := s.log()
	if err != nil {
		return nil, err
	}
	gpu, mig, err := log.find(d)
	if err != nil {
		return nil, err
	}
	m := log.GPUs[gpu].MIG[mig]
	list := make(map[int]alloc.Bytes)
	for _, p := range log.GPUs[gpu].Processes {
		if p.Instance != m.Instance || p.Compute != m.Compute {
			continue
		}
		addProcess(list, p.PID, strings.TrimSuffix(p.Memory, " MiB"))
	}
	return list, nil
}

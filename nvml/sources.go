package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

// Open opens the first of the sources named that answers: "nvml", the driver's library, "smi", the
// nvidia-smi program, or "drm", what the kernel tells of AMD and Intel GPUs. A path may follow: with
// "nvml:/opt/libnvidia-ml.so.1" and "smi:/opt/nvidia-smi" of the file, with "drm:/host" of the folder in
// which the host's files are mounted.
//
// Without a name it takes the best source there is: the driver's library, or without the library
// nvidia-smi, or without an NVIDIA driver the kernel's files. Its error is ErrNotAvailable and says why
// none can be had; the error of a name that is none of these is not. A library is loaded at run time, so a program built with this package starts on a
// machine without a GPU too. After Close, its methods return alloc.ErrClosed.
func Open(names ...string) (Source, error) {
	if len(names) == 0 {
		return open("/")
	}
	var reasons []string
	for _, name := range names {
		kind, path, _ := strings.Cut(name, ":")
		opener, ok := openers[kind]
		if !ok {
			return nil, fmt.Errorf("nvml: there is no source %q: want nvml, smi or drm", name)
		}
		src, err := opener(path)
		if err == nil {
			return src, nil
		}
		reasons = append(reasons, reason(err))
	}
	return nil, notAvailable("%s", strings.Join(reasons, "; "))
}

var openers = map[string]func(path string) (Source, error){"nvml": openLibrary, "smi": openSMI, "drm": openDRM}

func open(root string) (Source, error) {
	lib, libErr := openLibrary("")
	if libErr == nil {
		return lib, nil
	}
	smi, smiErr := openSMI("")
	if smiErr == nil {
		return smi, nil
	}
	// Beside an NVIDIA driver that fails, another GPU would hide the failure.
	if !exists(filepath.Join(root, "sys/module/nvidia")) {
		if kernel, err := openDRM(root); err == nil {
			return kernel, nil
		}
	}
	return nil, notAvailable("%v; %v", reason(libErr), reason(smiErr))
}

// overDevices is a Source of the devices that this process has open itself.
type overDevices struct {
	devices []Device
	open    map[string]alloc.Device // by UUID
}

// FromDevices returns a Source of devices that the program has opened, such as the simulated
// GPU of package alloc/sim. It reports their memory, and no sensors. All memory of a simulated
// GPU belongs to this process; how much of another device's does is unknown. It opens and
// closes nothing.
func FromDevices(devices ...alloc.Device) Source {
	s := &overDevices{open: make(map[string]alloc.Device, len(devices))}
	for i, dev := range devices {
		uuid := fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i)
		s.devices = append(s.devices, Device{Index: dev.Ordinal(), UUID: uuid, Name: dev.Name()})
		s.open[uuid] = dev
	}
	return s
}

func (s *overDevices) Name() string               { return "devices of this process" }
func (s *overDevices) Devices() ([]Device, error) { return s.devices, nil }
func (s *overDevices) Close() error               { return nil }

func (s *overDevices) Read(devices []Device, wanted []Quantity, into []Reading) {
	want := setOf(wanted...)
	for i := range devices {
		r := &into[i]
		r.reset(devices[i])
		if want&memoryQuants == 0 {
			continue
		}
		info, err := s.memInfo(devices[i])
		if err != nil {
			r.Err = err
			continue
		}
		r.setMemory(uint64(info.Total), uint64(info.Used()), uint64(info.Free), ofDevice)
	}
}

func (s *overDevices) Processes(d Device) (map[int]alloc.Bytes, error) {
	info, err := s.memInfo(d)
	if err != nil {
		return nil, err
	}
	own := alloc.Bytes(-1)
	if _, simulated := alloc.As[sim.Device](s.open[d.UUID]); simulated {
		own = info.Used()
	}
	return map[int]alloc.Bytes{os.Getpid(): own}, nil
}

func (s *overDevices) memInfo(d Device) (alloc.MemInfo, error) {
	dev, ok := s.open[d.UUID]
	if !ok {
		return alloc.MemInfo{}, fmt.Errorf("%s: %w", d.Label(), ErrNoDevice)
	}
	info, err := dev.MemInfo()
	if err != nil {
		return info, fmt.Errorf("%s: %w", d.Label(), err)
	}
	return info, nil
}

package cuda

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/libcuda"
)

// Info is what the driver says of a device.
type Info struct {
	Ordinal int    // among the devices that the process sees
	Name    string // "NVIDIA A100-SXM4-40GB"
	// UUID is as nvidia-smi prints it: "GPU-e3a10000-0000-4000-8000-000000000000", or
	// "MIG-..." of a MIG instance. A driver from before CUDA 11.4 gives an instance the
	// UUID of its GPU.
	UUID              string
	PCIBus            string      // "0000:01:00.0"
	ComputeCapability string      // "8.0"
	CUDA              string      // the newest CUDA that the driver can serve: "12.2"
	Memory            alloc.Bytes // in use or not
}

// Devices describes the devices that the process sees, in their order, without
// opening one. The errors are Open's; where there are none it is ErrNoGPU.
func Devices() ([]Info, error) {
	drv, err := library()
	if err != nil {
		return nil, fmt.Errorf("CUDA devices: %w", err)
	}
	n, err := drv.count()
	if err != nil {
		return nil, fmt.Errorf("CUDA devices: %w", mapped(err))
	}
	if n == 0 {
		return nil, fmt.Errorf("CUDA devices: %w", errNoDevice)
	}
	infos := make([]Info, n)
	for i := range infos {
		dev, err := drv.device(i)
		if err == nil {
			infos[i], err = drv.describe(dev)
		}
		if err != nil {
			return nil, fmt.Errorf("CUDA device %d of %d: %w", i, n, mapped(err))
		}
	}
	return infos, nil
}

// Info describes the device. It was asked when the device was opened.
func (d *Device) Info() Info { return d.info }

// The numbers of cuDeviceGetAttribute.
const computeCapabilityMajor, computeCapabilityMinor = 75, 76

func (d *driver) describe(dev device) (Info, error) {
	info := Info{Ordinal: int(dev)}
	version, err := d.version()
	if err != nil {
		return Info{}, fmt.Errorf("version of the driver: %w", err)
	}
	info.CUDA = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	if info.Name, err = d.name(dev); err != nil {
		return Info{}, fmt.Errorf("name: %w", err)
	}
	uuid, err := d.uuid(dev)
	if err != nil {
		return Info{}, fmt.Errorf("UUID: %w", err)
	}
	info.UUID = libcuda.UUID(uuid, info.Name)
	if info.PCIBus, err = d.pciBusID(dev); err != nil {
		return Info{}, fmt.Errorf("PCI bus: %w", err)
	}
	major, err := d.attribute(computeCapabilityMajor, dev)
	if err != nil {
		return Info{}, fmt.Errorf("compute capability: %w", err)
	}
	minor, err := d.attribute(computeCapabilityMinor, dev)
	if err != nil {
		return Info{}, fmt.Errorf("compute capability: %w", err)
	}
	info.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	memory, err := d.totalMemory(dev)
	if err != nil {
		return Info{}, fmt.Errorf("memory: %w", err)
	}
	info.Memory = alloc.Bytes(memory)
	return info, nil
}

// Package nvml reads what the driver reports: devices, their memory and sensors, and the
// memory of processes. It also records them over time; package nvml/chart draws recordings.
// It only asks: it never makes a context, takes device memory or changes a setting.
//
//	src, err := nvml.Open()
//	devices, err := nvml.VisibleDevices(src)
//	for _, r := range nvml.ReadAll(src, devices) {
//		used, ok := r.Value(nvml.MemoryUsed)
//		fmt.Println(r.Label(), alloc.Bytes(used), ok)
//	}
//
// A Recorder does so again and again:
//
//	rec, err := nvml.NewRecorder(nvml.Config{Target: nvml.Target{PID: os.Getpid()}})
//	err = rec.Start()
//	...
//	err = rec.Stop()
//	for _, s := range rec.Recording().Series {
//		fmt.Println(s) // NVIDIA TITAN RTX[0] -> memory used: min=1729.236992[MB] / max=2315.79648[MB]
//	}
//
// # Sources
//
// Open loads the driver's library, libnvidia-ml.so.1, at run time, with cgo or without, on Linux
// only. Where it cannot, it runs nvidia-smi, and where the machine has no NVIDIA driver, it reads
// the kernel's files of AMD and Intel GPUs: see Open. FromDevices makes a source of devices that
// the program has opened itself, such as simulated ones.
//
// # What is counted
//
// The driver counts a device's memory for all processes together, with their contexts and
// libraries. What it keeps for itself is separate, except with drivers that answer only its older
// query: see Scope. A process's memory is known where the driver reports it and where its
// process numbers are the host's. Elsewhere it is unknown, and Series.Note has the reason. An
// unknown value is never a zero or a guess.
//
// A Recorder takes samples. It misses a peak between two of them. The memory of a process is
// asked for once a second, so it is coarser than the device's. Package tracker sees every
// allocation of its own program.
//
// # Concurrency and cost
//
// Everything may be called from any goroutine. A sample makes no Go allocation;
// BenchmarkRecorder measures its time, without the driver's. A series takes at most 230 KiB,
// however long the recording.
package nvml

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Source answers questions about GPUs: through the driver's library, the nvidia-smi
// program, the kernel's files, or devices that this program has open. Its methods may be called from any
// goroutine.
type Source interface {
	Name() string

	// Devices lists the GPUs in the driver's order, that of the PCI bus. Each GPU is followed by
	// its MIG devices.
	Devices() ([]Device, error)

	// Read asks each device for the quantities in want; ProcessMemory is not among them. The
	// answer for devices[i] goes to into[i], and names it. What a device lacks is missing from its
	// Reading. Where a device cannot be asked at all, Reading.Err says why. Read keeps no
	// reference to its arguments.
	Read(devices []Device, want []Quantity, into []Reading)

	// Processes returns how much memory processes have on a device, by their numbers as the driver
	// counts them; it is negative where the driver does not report it. It is the costly call: 4.5 ms
	// under a lock of the driver's were measured elsewhere, against 12 us for the memory.
	Processes(d Device) (map[int]alloc.Bytes, error)

	Close() error
}

// ReadAll asks devices for everything they have: memory in total, used, free and reserved by
// the driver, and the sensors. Each may be missing. A device that cannot be asked is in the
// list too, with the reason in Reading.Err.
func ReadAll(src Source, devices []Device) []Reading {
	readings := make([]Reading, len(devices))
	src.Read(devices, allSet.list(), readings)
	return readings
}

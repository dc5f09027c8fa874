// Package nvml reads what the driver reports: devices, their memory and sensors, and the
// memory of processes. It also records them over time; package nvml/chart draws recordings.
//
//	rec, err := nvml.NewRecorder(nvml.Config{Target: nvml.Self()})
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
// only. Where it cannot, it runs nvidia-smi. FromDevices makes a source of devices that the program
// has opened itself, such as simulated ones.
//
// # What is counted
//
// The driver counts a device's memory for all processes together, with their contexts and
// libraries. What it keeps for itself is separate, except with drivers that answer only its older
// query: see Scope. A process's memory is known where the driver reports it and where its
// process numbers are the host's. Elsewhere it is unknown, and Series.Note has the reason. An
// unknown figure is never a zero or a guess.
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

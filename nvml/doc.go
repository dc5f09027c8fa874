// Package nvml is the driver's view of GPU memory: the devices and their
// sensors, the memory of processes, and recordings of them over time. Package
// nvml/chart draws recordings.
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
// Open takes the driver's library, libnvidia-ml.so.1, which it opens at run
// time, with cgo and without; on Linux only. Without it, it runs nvidia-smi. Over makes a
// source of devices that the program has open itself, such as simulated ones.
//
// # What is counted
//
// The driver counts a device's memory, all processes together, the context and
// libraries of each included. What it keeps for itself is apart, except with
// drivers that answer its older query alone: see Scope. A process's memory can
// be had where the driver tells it and where its process numbers are the
// host's; where not, it is unknown and the reason is in Series.Note. It is
// never a zero for what is not known, nor a guess.
//
// A Recorder sees what is there at its samples. A peak between two of them is
// missed; the memory of a process, asked for once a second, is coarser than the
// device's. Package tracker misses nothing, of the program that it is in.
//
// # Concurrency and cost
//
// Everything may be called from any goroutine. A sample of one device costs
// the recorder a few microseconds beside what the driver takes for its
// answer, and no Go allocation; BenchmarkRecorder measures it. A series takes
// 230 KiB at most, however long the recording.
package nvml

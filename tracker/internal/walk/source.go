package walk

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// ErrNoHistory is in the error of a dump without what happened before its snapshot.
var ErrNoHistory = errors.New("no events")

// Source is the kind of program that a snapshot comes from. Advice about the memory depends on it.
type Source uint8

// The sources.
const (
	Tracker Source = iota
	PyTorch
	BFC // an allocator of TensorFlow, XLA or ONNX Runtime, whose log has one moment and no lines of code
	RMM // RAPIDS' memory manager, whose log does not have what its resource holds from the driver
)

// SourceOf returns the source. A file of PyTorch has its settings, or has no process and names its device "cuda".
func SourceOf(s *snapshot.Snapshot) Source {
	switch s.Settings[AllocatorSetting] {
	case BFCAllocator:
		return BFC
	case RMMAllocator:
		return RMM
	}
	_, settings := s.Settings["PYTORCH_CUDA_ALLOC_CONF"]
	if settings || s.Settings[AllocatorSetting] == PyTorchAllocator || s.Cache == nil && s.Device == "cuda" && s.Origin == (snapshot.Origin{}) {
		return PyTorch
	}
	return Tracker
}

// The setting by which a snapshot of a log is known.
const (
	AllocatorSetting = "allocator"
	BFCAllocator     = "bfc"
	RMMAllocator     = "rmm"
	PyTorchAllocator = "pytorch"
)

// NoHistory returns the error of a source whose file has no events. It says how to get a file that has them, and it is an
// ErrNoHistory.
func (s Source) NoHistory() error {
	switch s {
	case PyTorch:
		return fmt.Errorf("%w: call torch.cuda.memory._record_memory_history() at the program's start", ErrNoHistory)
	case BFC:
		return fmt.Errorf("%w: the log of a BFC allocator tells of one moment only", ErrNoHistory)
	case RMM:
		return fmt.Errorf("%w: the log of RMM has no allocation of this device", ErrNoHistory)
	}
	return fmt.Errorf("%w: write a dump, whose history has them, with tracker.Config.MaxEvents above 0", ErrNoHistory)
}

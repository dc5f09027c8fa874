package oomtext

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// pytorchFamily are the messages of PyTorch's caching allocators, which since 1.0 say how much was requested and who has the
// rest. Backends differ in the first word: CUDA, HIP, XPU, NPU, MUSA, MLU.
var pytorchFamily = &family{
	name:   "pytorch",
	begins: []string{"out of memory. Tried to allocate", "out of memory. tried to allocate", "out of memory. NPUWorkspaceAllocator tried to allocate"},
	word:   true,
	ends:   []string{"by PyTorch but unallocated", "reserved in total by PyTorch", "See documentation for Memory Management", "release all unoccupied"},
	lines:  paragraph,
	parse:  parsePyTorch,
	judge:  helpPyTorch,
}

// pytorchTail is the same message without its first words, as people quote it.
var pytorchTail = &family{
	name:   "pytorch tail",
	begins: []string{"Tried to allocate"},
	ends:   pytorchFamily.ends,
	lines:  paragraph,
	parse:  func(f *Failure, text string) bool { return parsePyTorch(f, text) && f.Capacity >= 0 },
	judge:  helpPyTorch,
}

// pytorchFields are the phrases beside the amounts. Longer ones stand before those that they contain.
var pytorchFields = []field{
	{"ried to allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
	{"total capacity of", true, to(func(f *Failure) *alloc.Bytes { return &f.Capacity })},
	{"total capacty of", true, to(func(f *Failure) *alloc.Bytes { return &f.Capacity })}, // so spelled in some releases
	{"total capacity", false, to(func(f *Failure) *alloc.Bytes { return &f.Capacity })},
	{"is free", false, to(func(f *Failure) *alloc.Bytes { return &f.Free })},
	{"free", false, to(func(f *Failure) *alloc.Bytes { return &f.Free })},
	{"already allocated", false, to(func(f *Failure) *alloc.Bytes { return &f.Allocated })},
	{"is allocated by PyTorch", false, to(func(f *Failure) *alloc.Bytes { return &f.Allocated })},
	{"allocated in private pools", false, to(func(f *Failure) *alloc.Bytes { return &f.Private })},
	{"is reserved by PyTorch but unallocated", false, to(func(f *Failure) *alloc.Bytes { return &f.Inactive })},
	{"reserved in total by PyTorch", false, to(func(f *Failure) *alloc.Bytes { return &f.Reserved })},
	{"cached", false, to(func(f *Failure) *alloc.Bytes { return &f.Inactive })}, // until 1.3: of the reserved memory what is not allocated
	{"this process has", true, to(func(f *Failure) *alloc.Bytes { return &f.ThisProcess })},
	{"allowed", false, to(func(f *Failure) *alloc.Bytes { return &f.Limit })},
}

var (
	pytorchDevice  = regexp.MustCompile(`\b([A-Z]{1,3}[CLP]U|Device) +(\d{1,4})\b`)
	pytorchConf    = regexp.MustCompile(`\bPYTORCH_(?:[A-Z]{2,8}_)?ALLOC_CONF\b`)
	pytorchProcess = regexp.MustCompile(`Process (\d{1,18})`)
)

func parsePyTorch(f *Failure, text string) bool {
	f.Source = "PyTorch"
	if m := pytorchDevice.FindStringSubmatch(text); m != nil {
		f.Device = m[1] + " " + m[2]
	}
	f.advises, f.conf = strings.Contains(text, "try setting"), pytorchConf.FindString(text)
	fill(f, text, pytorchFields)
	for _, q := range quantities(text) {
		if m := pytorchProcess.FindStringSubmatch(q.before); m != nil && strings.HasSuffix(q.before, m[0]+" has") && q.bytes >= 0 && len(f.Processes) < maxProcesses {
			pid, _ := strconv.ParseInt(m[1], 10, 64)
			f.Processes = append(f.Processes, Process{pid, q.bytes})
		}
	}
	switch {
	case f.Reserved < 0 && f.Allocated >= 0 && f.Inactive >= 0:
		f.Reserved = f.Allocated + f.Inactive
	case f.Inactive < 0 && f.Allocated >= 0 && f.Reserved >= f.Allocated:
		f.Inactive = f.Reserved - f.Allocated
	}
	f.split()
	return f.Requested >= 0 || f.Capacity >= 0 || f.Free >= 0
}

// mpsFamily is the message of PyTorch on Apple's GPUs, which has a limit instead of a capacity.
var mpsFamily = &family{
	name:   "mps",
	takes:  []string{"pytorch tail"},
	begins: []string{"MPS backend out of memory"},
	ends:   []string{"may cause system failure"},
	lines:  paragraph,
	parse: func(f *Failure, text string) bool {
		f.Source, f.Device = "PyTorch", "MPS"
		fill(f, text, []field{
			{"MPS allocated:", true, to(func(f *Failure) *alloc.Bytes { return &f.Allocated })},
			{"other allocations:", true, to(func(f *Failure) *alloc.Bytes { return &f.Beside })},
			{"max allowed:", true, to(func(f *Failure) *alloc.Bytes { return &f.Limit })},
			{"ried to allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
		})
		return f.Requested >= 0
	},
	judge: helpMPS,
}

var asyncDevice = regexp.MustCompile(`Allocation on device (\d{1,4})`)

// asyncFamily is the message of PyTorch with backend:cudaMallocAsync.
var asyncFamily = &family{
	name:   "async",
	begins: []string{"Allocation on device"},
	ends:   []string{"user-supplied memory fraction"},
	lines:  8,
	parse: func(f *Failure, text string) bool {
		f.Source = "PyTorch"
		if m := asyncDevice.FindStringSubmatch(text); m != nil {
			f.Device = "GPU " + m[1]
		}
		fill(f, text, []field{
			{"Currently allocated :", true, to(func(f *Failure) *alloc.Bytes { return &f.Allocated })},
			{"Requested :", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
			{"Device limit :", true, to(func(f *Failure) *alloc.Bytes { return &f.Capacity })},
			{"Free (according to CUDA):", true, to(func(f *Failure) *alloc.Bytes { return &f.Free })},
			{"memory fraction) :", true, to(func(f *Failure) *alloc.Bytes { return &f.Limit })},
		})
		if f.Limit >= 0 && f.Limit >= f.Capacity {
			f.Limit = unknown
		}
		f.Reserved = f.Allocated // the driver's pool, of which PyTorch does not know the rest
		f.split()
		return true
	},
	judge: helpPyTorch,
}

package oomtext_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/oomtext"
)

// amount is a number of bytes as PyTorch prints it, and the bytes that it prints.
type amount struct {
	text  string
	bytes alloc.Bytes
}

// formatSize prints bytes as c10/cuda/CUDACachingAllocator.cpp does (format_size), of which the units are binary.
func formatSize(n int64, units [4]string) amount {
	v, unit := float64(n), 0
	for v > 1024 && unit < 3 {
		v /= 1024
		unit++
	}
	if unit == 0 {
		return amount{fmt.Sprintf("%d %s", n, units[0]), alloc.Bytes(n)}
	}
	text := fmt.Sprintf("%.2f", v)
	var shown float64
	fmt.Sscan(text, &shown)
	return amount{text + " " + units[unit], alloc.Bytes(shown*float64(int64(1)<<(10*unit)) + 0.5)}
}

var binary, apple = [4]string{"bytes", "KiB", "MiB", "GiB"}, [4]string{"bytes", "KB", "MB", "GB"}

// values are those of one message.
type values struct {
	device, pid                                                              int
	requested, capacity, free, allocated, inactive, reserved, process, limit amount
	other, private, active                                                   amount
}

func randomValues(r *rand.Rand, units [4]string) values {
	size := func(most float64) amount {
		return formatSize(int64(float64(int64(1)<<20)*(0.001+r.Float64()*most)), units)
	}
	return values{
		device: r.IntN(16), pid: 1 + r.IntN(1<<22), requested: size(40000), capacity: size(200000), free: size(2000), allocated: size(80000), inactive: size(9000),
		reserved: size(90000), process: size(100000), limit: size(100000), other: size(3000), private: size(3000), active: size(80000),
	}
}

const advice1, advice2, advice3 = " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
	" If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
	" If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"

// forms are the format strings of the messages, by release, and which values of a failure each one tells.
var forms = []struct {
	name  string
	print func(v values) string
	want  string // of requested, capacity, free, allocated, inactive, reserved, process, limit, private
	units [4]string
}{
	// c10/cuda/CUDACachingAllocator.cpp in v1.0 to v1.3 (in v1.0 aten/src/THC/THCCachingAllocator.cpp): what is cached is not
	// allocated.
	{"CUDA 1.0", func(v values) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s (GPU %d; %s total capacity; %s already allocated; %s free; %s cached)", v.requested.text, v.device, v.capacity.text, v.allocated.text, v.free.text, v.inactive.text)
	}, "requested capacity free allocated inactive", binary},
	// The same file in v1.4 to v1.7.
	{"CUDA 1.4", func(v values) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s (GPU %d; %s total capacity; %s already allocated; %s free; %s reserved in total by PyTorch)", v.requested.text, v.device, v.capacity.text, v.allocated.text, v.free.text, v.reserved.text)
	}, "requested capacity free allocated reserved", binary},
	// v1.8 and v1.9, with set_per_process_memory_fraction.
	{"CUDA 1.8", func(v values) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s (GPU %d; %s total capacity; %s already allocated; %s free; %s allowed; %s reserved in total by PyTorch)", v.requested.text, v.device, v.capacity.text, v.allocated.text, v.free.text, v.limit.text, v.reserved.text)
	}, "requested capacity free allocated limit reserved", binary},
	// v1.10 to v2.0.
	{"CUDA 1.10", func(v values) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s (GPU %d; %s total capacity; %s already allocated; %s free; %s reserved in total by PyTorch)%s", v.requested.text, v.device, v.capacity.text, v.allocated.text, v.free.text, v.reserved.text, advice1)
	}, "requested capacity free allocated reserved", binary},
	// v2.1, with its misprint, where NVML tells other processes.
	{"CUDA 2.1", func(v values) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s. GPU %d has a total capacty of %s of which %s is free. Process %d has %s memory in use. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.%s", v.requested.text, v.device, v.capacity.text, v.free.text, v.pid, v.other.text, v.allocated.text, v.inactive.text, advice2)
	}, "requested capacity free allocated inactive", binary},
	// v2.2 and v2.3.
	{"CUDA 2.2", func(v values) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. Process %d has %s memory in use. Including non-PyTorch memory, this process has %s memory in use. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.%s", v.requested.text, v.device, v.capacity.text, v.free.text, v.pid, v.other.text, v.process.text, v.allocated.text, v.inactive.text, advice3)
	}, "requested capacity free process allocated inactive", binary},
	{"CUDA 2.2 without NVML", func(v values) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.%s", v.requested.text, v.device, v.capacity.text, v.free.text, v.allocated.text, v.inactive.text, advice3)
	}, "requested capacity free allocated inactive", binary},
	// v2.4 on, with pools of CUDA graphs and a fraction.
	{"CUDA 2.4", func(v values) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. Including non-PyTorch memory, this process has %s memory in use. %s allowed; Of the allocated memory %s is allocated by PyTorch, with %s allocated in private pools (e.g., CUDA Graphs), and %s is reserved by PyTorch but unallocated.%s", v.requested.text, v.device, v.capacity.text, v.free.text, v.process.text, v.limit.text, v.allocated.text, v.private.text, v.inactive.text, advice3)
	}, "requested capacity free process limit allocated private inactive", binary},
	{"HIP 2.4", func(v values) string {
		return fmt.Sprintf("HIP out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.%s", v.requested.text, v.device, v.capacity.text, v.free.text, v.allocated.text, v.inactive.text, strings.ReplaceAll(advice3, "CUDA", "HIP"))
	}, "requested capacity free allocated inactive", binary},
	// c10/xpu/XPUCachingAllocator.cpp in v2.5 on.
	{"XPU 2.5", func(v values) string {
		return fmt.Sprintf("XPU out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.", v.requested.text, v.device, v.capacity.text, v.free.text, v.allocated.text, v.inactive.text)
	}, "requested capacity free allocated inactive", binary},
	// torch_npu/csrc/core/npu/NPUCachingAllocator.cpp of torch_npu 2.1, and its NPUWorkspaceAllocator.cpp.
	{"NPU", func(v values) string {
		return fmt.Sprintf("NPU out of memory. Tried to allocate %s (NPU %d; %s total capacity; %s already allocated; %s current active; %s free; %s allowed; %s reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.", v.requested.text, v.device, v.capacity.text, v.allocated.text, v.active.text, v.free.text, v.limit.text, v.reserved.text)
	}, "requested capacity free allocated limit reserved", binary},
	{"NPU workspace", func(v values) string {
		return fmt.Sprintf("NPU out of memory. NPUWorkspaceAllocator tried to allocate %s(NPU %d; %s total capacity; %s free)", v.requested.text, v.device, v.capacity.text, v.free.text)
	}, "requested capacity free", binary},
	// The fork for MLU has no space behind the free memory.
	{"MLU", func(v values) string {
		return fmt.Sprintf("MLU out of memory. Tried to allocate %s. MLU %d has a total capacity of %s of which %sis free. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.", v.requested.text, v.device, v.capacity.text, formatSize(1<<30, binary).text, v.allocated.text, v.inactive.text)
	}, "requested capacity allocated inactive", binary},
	// aten/src/ATen/mps/MPSAllocator.mm in v1.13 on.
	{"MPS", func(v values) string {
		return fmt.Sprintf("MPS backend out of memory (MPS allocated: %s, other allocations: %s, max allowed: %s). Tried to allocate %s on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).", v.allocated.text, v.other.text, v.limit.text, v.requested.text)
	}, "requested allocated limit", apple},
	// c10/cuda/CUDAMallocAsyncAllocator.cpp in v1.12 on.
	{"cudaMallocAsync", func(v values) string {
		return fmt.Sprintf("Allocation on device %d would exceed allowed memory. (out of memory)\nCurrently allocated     : %s\nRequested               : %s\nDevice limit            : %s\nFree (according to CUDA): %s\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB", v.device, v.allocated.text, v.requested.text, v.capacity.text, v.free.text)
	}, "requested capacity free allocated", binary},
}

// told are the values of a failure by their names in forms.
func told(f *oomtext.Failure) map[string]alloc.Bytes {
	return map[string]alloc.Bytes{
		"requested": f.Requested, "capacity": f.Capacity, "free": f.Free, "allocated": f.Allocated, "inactive": f.Inactive, "reserved": f.Reserved,
		"process": f.ThisProcess, "limit": f.Limit, "private": f.Private,
	}
}

func printed(v values) map[string]alloc.Bytes {
	return map[string]alloc.Bytes{
		"requested": v.requested.bytes, "capacity": v.capacity.bytes, "free": v.free.bytes, "allocated": v.allocated.bytes, "inactive": v.inactive.bytes, "reserved": v.reserved.bytes,
		"process": v.process.bytes, "limit": v.limit.bytes, "private": v.private.bytes,
	}
}

func read(t *testing.T, text string) *oomtext.Report {
	t.Helper()
	r, err := oomtext.Read(strings.NewReader(text))
	require.NoError(t, err, "%.300s", text)
	return r
}

// surroundings are what people paste a message in.
var surroundings = map[string]func(message string) string{
	"alone": func(m string) string { return m },
	"a traceback": func(m string) string {
		return "Traceback (most recent call last):\n  File \"train.py\", line 41, in <module>\n    loss = step(batch)\ntorch.OutOfMemoryError: " + m + "\nAborted\n"
	},
	"a rank": func(m string) string { return "[rank7]: torch.OutOfMemoryError: " + m + "\n[rank7]: done" },
	"times and colours": func(m string) string {
		return "2026-03-02T10:00:00.123Z \x1b[31mERROR\x1b[0m RuntimeError: \x1b[1m" + m + "\x1b[0m\n2026-03-02T10:00:01.123Z next 12.00 GiB free\n"
	},
	"JSON lines": func(m string) string {
		return `{"level":"error","msg":"` + strings.ReplaceAll(strings.ReplaceAll(m, "\n", `\n`), ">>", `\u003e\u003e`) + `\nAborted","ts":1}` + "\n"
	},
	"wrapped": func(m string) string {
		return "> " + strings.ReplaceAll(strings.ReplaceAll(m, ". GPU", ".\n> GPU"), "reserved by", "reserved\n> by") + "\n\nthen 1.00 GiB free\n"
	},
	"a page": func(m string) string { return "<p>" + strings.ReplaceAll(m, ">>", "&gt;&gt;") + "</p>\n" },
}

// TestEveryFormOfPyTorch prints each form with random values, and reads them back.
func TestEveryFormOfPyTorch(t *testing.T) {
	r := rand.New(rand.NewPCG(42, 1))
	for _, form := range forms {
		t.Run(form.name, func(t *testing.T) {
			for i := range 200 {
				v := randomValues(r, form.units)
				for around, put := range surroundings {
					if i%8 != 0 && around != "alone" {
						continue
					}
					message := put(form.print(v))
					report := read(t, message)
					require.Len(t, report.Failures, 1, message)
					f := report.Failures[0]
					got, want := told(f), printed(v)
					for name := range strings.FieldsSeq(form.want) {
						require.Equal(t, want[name], got[name], "%s, %s: %s", around, name, message)
					}
					for name, n := range got {
						if !strings.Contains(form.want, name) && name != "reserved" && name != "inactive" && name != "process" && name != "free" {
							require.Negative(t, n, "%s is not in %s", name, message)
						}
					}
					if around == "a rank" {
						require.Equal(t, "rank7", f.Rank)
					}
					_ = f.String()
				}
			}
		})
	}
}

func TestSeveralRanks(t *testing.T) {
	r := rand.New(rand.NewPCG(42, 2))
	var b strings.Builder
	for rank := range 8 {
		v := randomValues(r, binary)
		for range 2 {
			fmt.Fprintf(&b, "[rank%d]: torch.OutOfMemoryError: %s\n", rank, forms[5].print(v))
		}
	}
	report := read(t, b.String())
	require.Len(t, report.Failures, 8)
	for rank, f := range report.Failures {
		assert.Equal(t, fmt.Sprintf("rank%d", rank), f.Rank)
		assert.Equal(t, 1, f.Repeats)
		assert.Equal(t, 2*rank+1, f.Line)
	}
}

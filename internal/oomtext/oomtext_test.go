package oomtext_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/oomtext"
	"github.com/gpumemtrack/gpumemtrack/internal/verdict"
)

func one(t *testing.T, text string) *oomtext.Failure {
	t.Helper()
	report := read(t, text)
	require.Len(t, report.Failures, 1, text)
	return report.Failures[0]
}

func file(t *testing.T, name string) string {
	text, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return string(text)
}

func TestWhoHasTheMemory(t *testing.T) {
	f := one(t, file(t, "pytorch25.txt"))
	assert.Equal(t, 8, f.Line)
	assert.Equal(t, "GPU 0", f.Device)
	const gib = float64(alloc.GiB)
	assert.Equal(t, alloc.Bytes(22.5*gib), f.Requested)
	assert.Equal(t, alloc.Bytes(31.5*gib), f.Capacity)
	assert.Equal(t, alloc.Bytes(12.75*gib), f.Free)
	assert.Equal(t, 9*alloc.GiB, f.Allocated)
	assert.Equal(t, alloc.Bytes(9.25*gib), f.Inactive)
	assert.Equal(t, alloc.Bytes(0.25*gib), f.Beside)
	assert.Equal(t, alloc.Bytes(0.25*gib), f.Others)
	assert.Equal(t, verdict.TrulyFull, f.Verdict)
	assert.Contains(t, f.Says, "the request exceeds the free memory by 9.8 GiB, and by 512.0 MiB even if all that is reserved were free")
	require.NotEmpty(t, f.Useless)
	assert.Contains(t, f.Useless[0].Do, "expandable_segments")

	f = one(t, file(t, "pytorch20.txt"))
	assert.Equal(t, verdict.NoShortage, f.Verdict)
	assert.Contains(t, f.String(), "no shortage: the driver refused 116.0 MiB with 17.2 GiB free")
}

// message is one of PyTorch 2.2 on, of a device of 80 GiB.
func message(requested, free, process, allocated, inactive string, others string) string {
	return fmt.Sprintf("CUDA out of memory. Tried to allocate %s. GPU 0 has a total capacity of 80.00 GiB of which %s is free. %s"+
		"Including non-PyTorch memory, this process has %s memory in use. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.%s",
		requested, free, others, process, allocated, inactive, advice3)
}

// TestAdviceIsNamedAsTheMessageDoes: what it does not advise is not called its advice, and its own variable is named.
func TestAdviceIsNamedAsTheMessageDoes(t *testing.T) {
	const advises, often = "What the message advises, and cannot help here:", "What is often advised, and cannot help here:"
	read := func(text string) string {
		report, err := oomtext.Read(strings.NewReader(text))
		require.NoError(t, err)
		return strings.Join(strings.Fields(report.String()), " ")
	}
	said := read("CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)")
	assert.Contains(t, said, often)
	assert.NotContains(t, said, advises)
	full := message("2.00 GiB", "1.00 GiB", "79.00 GiB", "78.50 GiB", "0 bytes", "")
	assert.Contains(t, read(full), advises+" 1. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, max_split_size_mb: nothing is reserved but unallocated")
	later := strings.ReplaceAll(message("2.00 GiB", "0 bytes", "80.00 GiB", "70.00 GiB", "8.50 GiB", ""), "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
	assert.Contains(t, read(later), "1. PYTORCH_ALLOC_CONF=expandable_segments:True: segments can then grow")
	assert.Contains(t, read(later), "fragmented: 8.5 GiB are reserved but unallocated, which would be enough")
}

func TestVerdicts(t *testing.T) {
	for _, test := range []struct {
		text     string
		want     verdict.Verdict
		helps    string // part of the first advice
		useless  string // part of the advice that cannot help
		contains string
	}{
		{message("2.00 GiB", "1.00 GiB", "79.00 GiB", "78.00 GiB", "512.00 MiB", ""), verdict.TrulyFull, "a smaller batch", "at most the 512.0 MiB", "and by 512.0 MiB even if"},
		{message("2.00 GiB", "1.00 GiB", "79.00 GiB", "70.00 GiB", "8.50 GiB", ""), verdict.Fragmented, "expandable_segments:True", "", "8.5 GiB are reserved but unallocated"},
		{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py\n" + message("2.00 GiB", "1.00 GiB", "79.00 GiB", "70.00 GiB", "8.50 GiB", ""), verdict.Fragmented, "torch.cuda.empty_cache()", "it is on already", ""},
		{message("6.00 GiB", "4.00 GiB", "13.00 GiB", "12.00 GiB", "512.00 MiB", "Process 77 has 63.00 GiB memory in use. "), verdict.OtherProcess, "nvidia-smi", "expandable_segments", "other processes use 63.0 GiB of the device; the request exceeds the free memory by 2.0 GiB"},
		{message("90.00 GiB", "70.00 GiB", "10.00 GiB", "9.00 GiB", "512.00 MiB", ""), verdict.TooLarge, "split the operation", "", "no device of 80.0 GiB can hold 90.0 GiB"},
		{message("90000.00 GiB", "70.00 GiB", "10.00 GiB", "9.00 GiB", "512.00 MiB", ""), verdict.TooLarge, "look at the shapes", "", ""},
		{message("2.00 MiB", "60.00 GiB", "20.00 GiB", "19.00 GiB", "512.00 MiB", ""), verdict.NoShortage, "run it again", "enough of the device was free", ""},
		{message("2.00 GiB", "2.10 GiB", "77.80 GiB", "77.00 GiB", "512.00 MiB", ""), verdict.TrulyFull, "a smaller batch", "", "although 2.1 GiB are free"},
		{"CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 80.00 GiB total capacity; 9.00 GiB already allocated; 60.00 GiB free; 10.00 GiB allowed; 9.50 GiB reserved in total by PyTorch)", verdict.Limit, "set_per_process_memory_fraction", "", "the program may take 10.0 GiB"},
		{"HIP out of memory. Tried to allocate 76.00 MiB. GPU 0 has a total capacity of 288.00 GiB of which 0 bytes is free. Of the allocated memory 8.50 GiB is allocated by PyTorch, and 2.00 MiB is reserved by PyTorch but unallocated.", verdict.OtherProcess, "", "PYTORCH_HIP_ALLOC_CONF", "outside of this allocator"},
		{"MPS backend out of memory (MPS allocated: 9.50 GiB, other allocations: 17.50 GiB, max allowed: 27.20 GiB). Tried to allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0", verdict.Limit, "close other programs", "", "27.2 GiB"},
		{"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated so far: 12,000,000 bytes, limit set to: 1,000,000,000 bytes).", verdict.Limit, "set_limit", "", ""},
		{"ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 2.500000GB memory on GPU 0, 20.000000GB memory has been allocated and available memory is only 2.000000GB.", verdict.Unknown, "nvidia-smi", "", "exceeds the free memory by 512.0 MiB"},
	} {
		f := one(t, test.text)
		assert.Equal(t, test.want, f.Verdict, test.text)
		text := f.String()
		require.NotEmpty(t, f.Helps)
		assert.Contains(t, f.Helps[0].Do, test.helps)
		assert.Contains(t, strings.Join(strings.Fields(text), " "), test.contains)
		if test.useless != "" {
			assert.Contains(t, strings.Join(strings.Fields(text), " "), test.useless)
		}
		for line := range strings.Lines(text) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
		}
		assert.Less(t, strings.Count(text, "\n"), 40, "one screen")
	}
}

// TestInAContainer: a process there does not know its number, and PyTorch lists it with the others.
func TestInAContainer(t *testing.T) {
	f := one(t, "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 48.00 GiB of which 16.00 MiB is free. Process 4711 has 47.90 GiB memory in use. Of the allocated memory 47.00 GiB is allocated by PyTorch, and 58.00 MiB is reserved by PyTorch but unallocated.")
	assert.Equal(t, verdict.TrulyFull, f.Verdict)
	assert.Empty(t, f.Processes)
	assert.Positive(t, f.ThisProcess)
	assert.Contains(t, f.String(), "process 4711 is this process itself")
}

// TestWindows: the driver keeps what does not fit in the machine's memory, and prints 2^64 for what it does not tell.
func TestWindows(t *testing.T) {
	f := one(t, "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated memory 14.50 GiB is allocated by PyTorch, and 15.00 MiB is reserved by PyTorch but unallocated.")
	assert.Negative(t, f.ThisProcess)
	assert.Negative(t, f.Others)
	assert.Contains(t, strings.Join(strings.Fields(f.String()), " "), "the driver keeps a part in the machine's memory")
}

func TestOtherPrograms(t *testing.T) {
	f := one(t, file(t, "llamacpp.log"))
	assert.Equal(t, "llama.cpp", f.Source)
	assert.Equal(t, "CUDA0", f.Device)
	assert.Equal(t, "compute buffers", f.Purpose)
	assert.Equal(t, 14000*alloc.MiB, f.Requested)
	assert.Contains(t, f.Helps[0].Do, "-ub")
	assert.Equal(t, 1, f.Line)

	f = one(t, file(t, "tpu.txt"))
	assert.Equal(t, verdict.TooLarge, f.Verdict)
	assert.Equal(t, 64*alloc.GiB, f.Requested)
	assert.Equal(t, 31*alloc.GiB, f.Capacity)
	assert.Contains(t, f.Notes[0], "program 64.0 GiB, arguments 0 B, reserved 1.2 GiB")
	assert.Contains(t, f.Notes[1], "2.0 GiB f32[32,4096,4096]")
	assert.Contains(t, f.Notes[1], "/srv/attention.py:1059")

	for text, want := range map[string]struct {
		source, device string
		requested      alloc.Bytes
	}{
		"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.":                                                {"XLA", "", 4 * alloc.GiB},
		"E x.cc:672] Execution of replica 0 failed: Resource exhausted: Out \nof memory while trying to allocate 4294967296 bytes.":                                         {"XLA", "", 4 * alloc.GiB},
		"RESOURCE_EXHAUSTED: Failed to allocate request for 3.00GiB (3221225472B) on device ordinal 2":                                                                      {"XLA", "GPU 2", 3 * alloc.GiB},
		"RESOURCE_EXHAUSTED: Attempting to reserve 6.00G at the bottom of memory. That was not possible. There are 4.00G free, 0B reserved, and 4.00G reservable.":          {"XLA", "", 6 * alloc.GiB},
		"ResourceExhaustedError: OOM when allocating tensor with shape[16,1024,1024] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc": {"TensorFlow", "GPU 1", 64 * alloc.MiB},
		"ResourceExhaustedError: OOM when allocating tensor with shape[16,1024,1024]":                                                                                       {"TensorFlow", "", -1},
		"2019-07-21: E tensorflow/stream_executor/cuda/cuda_driver.cc:828] failed to allocate 32.00M (33554432 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory": {"CUDA", "", 32 * alloc.MiB},
		"RuntimeError: CUDA error: out of memory":                                                                                                                       {"CUDA", "", -1},
		"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`":                                                                      {"cuBLAS", "", -1},
		"RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58":                                                        {"CUDA", "", -1},
		"torch.OutOfMemoryError: Allocation on device ":                                                                                                                 {"PyTorch", "", -1},
		"alloc_tensor_range: failed to allocate CUDA0 buffer of size 1073741824\nllama_model_load: error loading model: unable to allocate CUDA0 buffer":                {"llama.cpp", "CUDA0", alloc.GiB},
		"ggml_vulkan: Device memory allocation of size 1073741824 failed.\nggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory":                             {"ggml", "", alloc.GiB},
		"E:onnxruntime: bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 1073741824":                                                             {"ONNX Runtime", "", alloc.GiB},
		"MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /opt/rmm/mr/device/cuda_memory_resource.hpp:70: cudaErrorMemoryAllocation out of memory":            {"RMM", "", -1},
		"CUDA error: out of memory\n  current device: 0, in function ggml_cuda_pool_malloc_vmm at ggml-cuda.cu:8583\n  cuMemCreate(&handle, reserve_size, &prop, 0)\n":  {"ggml", "", -1},
		"CUDA error 2 at ggml-cuda.cu:359: out of memory":                                                                                                               {"ggml", "", -1},
		"MESA: error: anv_device.c:4237: VK_ERROR_OUT_OF_DEVICE_MEMORY":                                                                                                 {"Vulkan", "", -1},
		"RuntimeError: CUDA error:out of memory":                                                                                                                        {"CUDA", "", -1},
		"cupy.cuda.memory.OutOfMemoryError: out of memory to allocate 1073741824 bytes (total 12373894656 bytes)":                                                       {"CuPy", "", alloc.GiB},
		"Out of memory error on GPU 0. Cannot allocate 1.500000GB GPU memory, available memory is 512.000000MB.":                                                        {"PaddlePaddle", "GPU 0", 3 * alloc.GiB / 2},
		"Resource exhausted: OOM when allocating tensor with shape[1,1024,256] and type float on /job:localhost/device:CPU:0 by allocator cpu":                          {"TensorFlow", "CPU 0", alloc.MiB},
		"W op_kernel.cc:1751] Resource exhausted: MemoryError: Unable to allocate 1.00 GiB for an array with shape (1, 2) and data type float32":                        {"NumPy", "host", alloc.GiB},
		"Error: llama runner process has terminated: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 1073741824":      {"ggml", "CUDA0", alloc.GiB},
		"RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes. Error code 12": {"PyTorch", "host", alloc.GiB},
	} {
		f := one(t, text)
		assert.Equal(t, want.source, f.Source, text)
		assert.Equal(t, want.device, f.Device, text)
		assert.Equal(t, want.requested, f.Requested, text)
		assert.NotEmpty(t, f.Helps, text)
		assert.Contains(t, []string{"unknown", "not the GPU"}, strings.SplitN(f.Says, ":", 2)[0], "such messages say little")
	}
}

// TestWhatIsNoError: other lines with the words, and warnings.
func TestWhatIsNoError(t *testing.T) {
	for _, text := range []string{
		"", "hello", "if you run out of memory, make the batch smaller", "failed to allocate a seat", "grpc: RESOURCE_EXHAUSTED: quota of requests",
		"W bfc_allocator.cc:310] Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.37GiB with freed_by_count=0. The caller indicates that this is not a failure, but",
		"ggml_cuda_host_malloc: failed to allocate 1900,00 MiB of pinned memory: invalid argument",
		"Tried to allocate 5 apples", "CUDA out of QiB. Tried to allocate 5 QiB.",
	} {
		_, err := oomtext.Read(strings.NewReader(text))
		assert.ErrorIs(t, err, oomtext.ErrNone, text)
	}
}

func TestStatistics(t *testing.T) {
	for name, peak := range map[string]alloc.Bytes{"summary.txt": 18500 * alloc.MiB, "stats.json": -1} {
		text := file(t, name)
		if name == "stats.json" { // as json.dumps(..., indent=1) and Python print it too
			for _, other := range []string{strings.ReplaceAll(text, ", ", ",\n "), strings.ReplaceAll(text, `"`, "'")} {
				assert.Equal(t, read(t, text).Stats[0].Reserved, read(t, other).Stats[0].Reserved)
			}
		}
		report := read(t, "before\n"+text+"after 5 MiB\n")
		require.Len(t, report.Stats, 1)
		s := report.Stats[0]
		assert.Equal(t, 9*alloc.GiB, s.Allocated, name)
		assert.Equal(t, 10*alloc.GiB, s.AllocatedPeak, name)
		assert.Equal(t, 18*alloc.GiB, s.Reserved, name)
		assert.Equal(t, peak, s.ReservedPeak, name)
		assert.Equal(t, 4*alloc.GiB, s.NonReleasable, name)
		assert.EqualValues(t, 2, s.OOMs, name)
		assert.EqualValues(t, 5, s.Retries, name)
		said := strings.Join(strings.Fields(s.String()), " ")
		assert.Contains(t, said, "9.0 GiB are reserved but unallocated, of which 4.0 GiB lie in pieces")
	}
}

// TestSaidTwice: a program prints an error again as it passes it on.
func TestSaidTwice(t *testing.T) {
	m := message("2.00 GiB", "1.00 GiB", "79.00 GiB", "78.00 GiB", "512.00 MiB", "")
	f := one(t, "RuntimeError: "+m+"\n\nDuring handling of the above exception, another exception occurred:\n\nray.exceptions.RayTaskError: "+m+"\n")
	assert.Equal(t, 1, f.Repeats)
	assert.Contains(t, f.String(), "(the text says it twice)")
}

// TestMillionRanks: what is kept is bounded.
func TestMillionRanks(t *testing.T) {
	var b strings.Builder
	for rank := range 100_000 {
		fmt.Fprintf(&b, "[rank%d]: CUDA out of memory. Tried to allocate %d.00 MiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 MiB is free.\n", rank, rank+2)
	}
	report := read(t, b.String())
	assert.Len(t, report.Failures, 256)
	assert.Equal(t, 100_000-256, report.LeftOut)
	assert.Less(t, strings.Count(report.String(), "\n"), 60)
}

// TestHostileNumbers are unknown.
func TestHostileNumbers(t *testing.T) {
	for _, number := range []string{strings.Repeat("9", 400) + ".00 GiB", "1e400 GiB", "99999999999999999999 GiB", "5.5.5 GiB", "-3 GiB", "NaN GiB", "12 QiB", "١٢ GiB"} {
		report, err := oomtext.Read(strings.NewReader("CUDA out of memory. Tried to allocate " + number + ". GPU 0 has a total capacity of 80.00 GiB of which 1.00 MiB is free."))
		require.NoError(t, err, number)
		f := report.Failures[0]
		assert.LessOrEqual(t, f.Requested, alloc.Bytes(1<<60), number)
		_, err = json.Marshal(report)
		require.NoError(t, err)
	}
}

// TestALongLog: a log of many megabytes is read in little memory, and a line without an end too.
func TestALongLog(t *testing.T) {
	const size = 256 << 20
	for name, filler := range map[string]string{"lines": "(EngineCore pid=418) INFO 03-02 09:26:25 [metrics.py:1] Avg prompt throughput: 123.4 tokens/s, Running: 3 reqs\n", "a line": "0123456789abcdef"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := oomtext.Read(&repeated{text: filler, left: size, end: "\nCUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 MiB is free.\n"})
		require.NoError(t, err, name)
		runtime.ReadMemStats(&after)
		assert.Equal(t, 2*alloc.MiB, r.Failures[0].Requested, name)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), name)
	}
}

// repeated reads a text over and over, and then another.
type repeated struct {
	text string
	left int
	at   int
	end  string
}

func (r *repeated) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if r.left <= 0 {
			m := copy(p[n:], r.end)
			r.end = r.end[m:]
			if n += m; n == 0 {
				return 0, io.EOF
			}
			return n, nil
		}
		m := copy(p[n:], r.text[r.at:])
		r.at = (r.at + m) % len(r.text)
		r.left -= m
		n += m
	}
	return n, nil
}

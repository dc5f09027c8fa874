package oomtext

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// tensorflowFamily are one-line messages of TensorFlow. They name the tensor, or the allocator's chunk.
var tensorflowFamily = &family{
	name:   "tensorflow",
	takes:  []string{"bare"},
	begins: []string{"OOM when allocating tensor", "ran out of memory trying to allocate"},
	lines:  1,
	parse:  parseTensorFlow,
	judge:  helpTensorFlow,
}

var (
	tfTensor = regexp.MustCompile(`with shape ?\[([\d, ]{0,200})\] and type (\w{1,20})`)
	tfDevice = regexp.MustCompile(`device:(\w+:\d{1,4})`)
)

// tfTypes are bytes of TensorFlow's types.
var tfTypes = map[string]alloc.Bytes{
	"float": 4, "half": 2, "bfloat16": 2, "double": 8, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
	"bool": 1, "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1, "qint8": 1, "quint8": 1,
}

func parseTensorFlow(f *Failure, text string) bool {
	if strings.Contains(text, "not a failure") {
		return false
	}
	f.Source = "TensorFlow"
	fill(f, text, []field{{"trying to allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })}})
	if m := tfDevice.FindStringSubmatch(text); m != nil {
		f.Device = strings.ReplaceAll(m[1], ":", " ")
	}
	f.onHost = strings.HasPrefix(f.Device, "CPU")
	if m := tfTensor.FindStringSubmatch(text); m != nil {
		f.Purpose = "a tensor of shape [" + m[1] + "], " + m[2]
		f.Requested = bytesOf(m[1], tfTypes[m[2]])
	}
	return true
}

// bytesOf returns the bytes of a tensor; unknown if its type is, or no machine has so many.
func bytesOf(shape string, each alloc.Bytes) alloc.Bytes {
	const most = 1 << 60
	if each == 0 {
		return unknown
	}
	for _, word := range strings.FieldsFunc(shape, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil || n > 0 && each > most/alloc.Bytes(n) {
			return unknown
		}
		each *= alloc.Bytes(n)
	}
	return each
}

// cupyFamily is CuPy's message, which tells its limit.
var cupyFamily = &family{
	name:   "cupy",
	begins: []string{"Out of memory allocating", "out of memory to allocate"}, // the second in old releases
	lines:  paragraph,
	parse: func(f *Failure, text string) bool {
		f.Source = "CuPy"
		fill(f, text, []field{
			{"Out of memory allocating", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
			{"out of memory to allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
			{"(total", true, to(func(f *Failure) *alloc.Bytes { return &f.Reserved })},
			{"allocated so far:", true, to(func(f *Failure) *alloc.Bytes { return &f.Reserved })},
			{"limit set to:", true, to(func(f *Failure) *alloc.Bytes { return &f.Limit })},
		})
		return f.Requested >= 0
	},
	judge: helpCuPy,
}

// paddleFamily is PaddlePaddle's message. What it calls allocated is what is in use on the device.
var paddleFamily = &family{
	name:   "paddle",
	begins: []string{"Out of memory error on"},
	lines:  paragraph,
	parse: func(f *Failure, text string) bool {
		f.Source = "PaddlePaddle"
		if m := pytorchDevice.FindStringSubmatch(text); m != nil {
			f.Device = m[1] + " " + m[2]
		}
		used := unknown
		fill(f, text, []field{
			{"Cannot allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
			{"memory has been allocated", false, func(_ *Failure, n alloc.Bytes) { used = n }},
			{"available memory is", true, to(func(f *Failure) *alloc.Bytes { return &f.Free })},
			{"available memory is only", true, to(func(f *Failure) *alloc.Bytes { return &f.Free })},
		})
		if used >= 0 && f.Free >= 0 {
			f.Capacity = used + f.Free
		}
		return f.Requested >= 0
	},
	judge: helpLittle,
}

// hostFamily is of the machine's memory, which people take for the GPU's.
var hostFamily = &family{
	name:   "host",
	begins: []string{"DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "Unable to allocate"},
	lines:  2,
	parse: func(f *Failure, text string) bool {
		f.Source, f.Device = "PyTorch", "host"
		if strings.HasPrefix(text, "Unable") {
			f.Source = "NumPy"
		}
		fill(f, text, []field{
			{"ried to allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
			{"Unable to allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
		})
		return f.Source == "PyTorch" || strings.Contains(text, "for an array")
	},
	judge: helpHost,
}

// bareFamily are messages that say that memory ran out, and little more.
var bareFamily = &family{
	name:  "bare",
	takes: []string{"bare", "ggml"},
	begins: []string{
		"CUDA error: out of memory", "CUDA error:out of memory", "CUDA error 2 at", "VK_ERROR_OUT_OF_DEVICE_MEMORY", "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "cudaErrorOutOfMemory", "cuda runtime error (2)",
		"_ALLOC_FAILED", "HIP error: out of memory", "hipErrorOutOfMemory", "hipErrorMemoryAllocation", "out_of_memory: ", "alloc failed: out of memory",
		"CUDA out of memory", "HIP out of memory", "ErrorOutOfDeviceMemory", "ailed to allocate", "XPU out of memory", "CUDA failure 2",
	},
	lines: 3,
	goesOn: func(line string) bool {
		return strings.Contains(line, "current device:") || strings.Contains(line, "(&")
	}, // of ggml
	parse: parseBare,
	judge: helpLittle,
}

// libraries are who says it, by words of the message or of the word before it.
var libraries = []struct{ word, source string }{
	{"CUBLAS", "cuBLAS"}, {"CUDNN", "cuDNN"}, {"CUSOLVER", "cuSOLVER"}, {"CUSPARSE", "cuSPARSE"}, {"CUFFT", "cuFFT"}, {"HIPBLAS", "hipBLAS"},
	{"rmm", "RMM"}, {"RMM", "RMM"}, {"bfc_arena", "ONNX Runtime"}, {"requested buffer of size", "ONNX Runtime"}, {"hip", "HIP"}, {"HIP", "HIP"}, {"XPU", "PyTorch"},
	{"Vulkan", "Vulkan"}, {"vk::", "Vulkan"}, {"DeviceMemory", "Vulkan"}, {"VK_ERROR", "Vulkan"},
}

var bareBuffer = regexp.MustCompile(`buffer of size (\d{1,18})`)

func parseBare(f *Failure, text string) bool {
	words := f.backend + " " + text
	lower := strings.ToLower(words)
	gpu := strings.Contains(words, "VK_ERROR") || strings.Contains(lower, "cuda") || strings.Contains(lower, "hip") || strings.Contains(lower, "gpu") || strings.Contains(lower, "device") ||
		strings.Contains(words, "_ALLOC_FAILED") || strings.Contains(lower, "xpu") || strings.Contains(lower, "rmm") || bareBuffer.MatchString(text)
	if !gpu {
		return false // a line of something else that failed to allocate
	}
	if strings.Contains(text, "ggml") {
		return parseGGML(f, text)
	}
	f.Source = "CUDA"
	for _, l := range libraries {
		if strings.Contains(words, l.word) {
			f.Source = l.source
			break
		}
	}
	fill(f, text, []field{{"ailed to allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })}})
	if m := bareBuffer.FindStringSubmatch(text); m != nil && f.Requested < 0 {
		n, _ := strconv.ParseInt(m[1], 10, 64)
		f.Requested = alloc.Bytes(n)
	}
	return true
}

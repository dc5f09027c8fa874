package oomtext

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/verdict"
)

// conf returns the variable that has the settings of PyTorch's allocator: that of the message, if it names one.
func conf(f *Failure) string {
	if f.conf != "" {
		return f.conf
	}
	switch f.backend {
	case "HIP":
		return "PYTORCH_HIP_ALLOC_CONF"
	case "NPU":
		return "PYTORCH_NPU_ALLOC_CONF"
	case "MUSA":
		return "PYTORCH_MUSA_ALLOC_CONF"
	case "MLU":
		return "PYTORCH_MLU_ALLOC_CONF"
	}
	return "PYTORCH_CUDA_ALLOC_CONF"
}

// helpPyTorch says what helps a program of PyTorch.
func helpPyTorch(f *Failure) {
	expandable := conf(f) + "=expandable_segments:True"
	f.Useless = advice(f, expandable)
	switch f.Verdict {
	case verdict.NoShortage:
		f.help("run it again, and compare nvidia-smi at the time of the error", "other processes may have freed memory between the refusal and the message")
		f.help("look for limits that are not the device's: ulimit -v, the container's, a MIG slice, WSL", "the driver refuses for those too")
		f.help("CUDA_LAUNCH_BLOCKING=1", "an earlier failure of a kernel may surface here")
	case verdict.Limit:
		f.help("torch.cuda.set_per_process_memory_fraction with a larger fraction, or none", "%v are free", f.Free)
	case verdict.TooLarge:
		tooLarge(f)
	case verdict.Fragmented:
		if f.butOthers() != "" {
			endOthers(f)
		}
		if f.settings.expandable {
			f.help("torch.cuda.empty_cache() before the step that failed", "the allocator then starts from whole segments")
		} else {
			f.help(expandable, "segments can then grow, so most of the %v that are reserved but unallocated becomes usable", f.Inactive)
		}
		f.help("torch.cuda.memory._dump_snapshot(\"crash.pickle\"), then gpumemtrack explain crash.pickle", "it names the buffers that pin the inactive memory")
		smaller(f)
	case verdict.OtherProcess:
		endOthers(f)
		smaller(f)
	case verdict.TrulyFull:
		smaller(f)
		if f.Others > contextBytes {
			endOthers(f)
		}
	default:
		record(f)
	}
}

// advice returns what the message itself advises and cannot help, and why.
func advice(f *Failure, expandable string) (useless []Help) {
	short := f.short()
	switch {
	case f.Source != "PyTorch" || short == unknown:
	case f.Verdict == verdict.NoShortage:
		useless = append(useless, Help{expandable + ", max_split_size_mb", "enough of the device was free, so fragmentation of the cache was not the cause"})
	case f.Inactive < 0 || f.Verdict == verdict.Limit || f.Verdict == verdict.TooLarge && f.Inactive >= short:
	case f.settings.expandable:
		useless = append(useless, Help{expandable, "the log shows that it is on already"})
	case f.Inactive == 0:
		useless = append(useless, Help{expandable + ", max_split_size_mb", "nothing is reserved but unallocated, so there is nothing to gain"})
	case f.Inactive < short:
		useless = append(useless, Help{expandable + ", max_split_size_mb", fmt.Sprintf("it can gain at most the %v that are reserved but unallocated, but %v are needed", f.Inactive, short)})
	}
	return useless
}

func smaller(f *Failure) {
	f.help("a smaller batch, shorter sequences or smaller images", "what a step holds grows with them")
	f.help("for training: torch.utils.checkpoint, an optimizer with 8 bits, or sharding (FSDP, ZeRO)", "activations and optimizer states are the largest parts that need not be there")
	record(f)
}

func record(f *Failure) {
	f.help("torch.cuda.memory._record_memory_history(), a snapshot at the error, then gpumemtrack show crash.pickle", "it names the lines that hold the memory: see docs/out-of-memory.md")
}

func endOthers(f *Failure) {
	var pids []string
	for _, p := range f.Processes {
		pids = append(pids, fmt.Sprintf("%d (%v)", p.PID, p.Used))
	}
	why := "it lists who they are"
	if len(pids) > 0 {
		const most = 8
		why = "the message names " + strings.Join(pids[:min(len(pids), most)], ", ")
	}
	f.help("nvidia-smi --query-compute-apps=pid,used_memory --format=csv, and end those that are left over", "%s", why)
	f.help("CUDA_VISIBLE_DEVICES with another device", "if those processes cannot be ended")
}

func tooLarge(f *Failure) {
	const absurd = 16
	if f.Capacity > 0 && f.Requested/absurd > f.Capacity {
		f.help("look at the shapes in the line that failed", "a request of %v is a mistake of the program, not a need", f.Requested)
		return
	}
	f.help("split the operation: a smaller batch, chunks, or attention that does not materialise its scores", "one request must fit into the device")
	f.help("a larger device, or several with the tensor split over them", "%v are not enough", f.Capacity)
}

func helpMPS(f *Failure) {
	if f.Limit >= 0 {
		f.help("close other programs, or make the batch smaller", "the GPU shares the machine's memory")
		f.help("PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0", "it lifts PyTorch's limit of %v; the machine may then swap, or fail", f.Limit)
	}
}

func helpGGML(f *Failure) {
	switch f.Purpose {
	case "KV cache":
		f.help("-c with fewer tokens, or --parallel with fewer slots", "the KV cache grows with both")
		f.help("-ctk q8_0 -ctv q8_0, with -fa on", "keys and values take half")
		f.help("-ngl with fewer layers", "the KV cache of a layer is where the layer is")
	case "compute buffers":
		f.help("-ub with a smaller batch, such as -ub 256", "the compute buffers grow with it")
		f.help("-fa on", "attention then keeps no scores, which grow with the context")
		f.help("-c with fewer tokens, or -ngl with fewer layers", "weights and KV cache leave more room")
	default:
		f.help("-ngl with fewer layers, or for a mixture of experts --n-cpu-moe", "the other layers stay in the machine's memory")
		f.help("a smaller quantization of the model, such as Q4_K_M", "weights are most of what is loaded")
		f.help("-c with fewer tokens", "the KV cache leaves more room")
	}
	f.help("gpumemtrack estimate MODEL.gguf --engine llama.cpp --fits SIZE", "it tells which of these fit")
}

func helpXLA(f *Failure) {
	switch {
	case f.Device == "TPU":
		f.help("a smaller batch for each device, or more devices in the sharding", "the program must fit when it is compiled")
		f.help("jax.checkpoint (remat) around the layers", "HLO temporaries are mostly activations")
		f.help("donate_argnums for the state that a step replaces", "its arguments and results then share memory")
	default:
		f.help("XLA_PYTHON_CLIENT_MEM_FRACTION=0.9, or XLA_PYTHON_CLIENT_PREALLOCATE=false", "JAX takes three quarters of the device at the start, and no more later; other programs on the device need the rest")
		f.help("a smaller batch, jax.checkpoint (remat), donate_argnums", "they lower what a step holds")
		f.help("the allocator's lines above the error (bfc_allocator) in the same file", "they tell what the pool holds: gpumemtrack explain reads them")
	}
}

func helpTensorFlow(f *Failure) {
	f.help("a smaller batch, or mixed precision (tf.keras.mixed_precision)", "activations grow with it")
	f.help("TF_GPU_ALLOCATOR=cuda_malloc_async", "where the pool is in pieces")
	f.help("the allocator's lines above the error (bfc_allocator) in the same file", "they tell what the pool holds: gpumemtrack explain reads them")
}

func helpCuPy(f *Failure) {
	if f.Verdict == verdict.Limit {
		f.help("cupy.get_default_memory_pool().set_limit, or CUPY_GPU_MEMORY_LIMIT", "the limit of %v is the program's own", f.Limit)
		return
	}
	f.help("cupy.get_default_memory_pool().free_all_blocks()", "blocks of other sizes go back to the device")
	f.help("nvidia-smi --query-compute-apps=pid,used_memory --format=csv", "it tells whether other processes have the rest")
}

func helpHost(f *Failure) {
	f.help("free -h, and the limit of the container or job", "the memory of the machine is what lacks")
	f.help("fewer workers of the DataLoader, or loading weights in parts (mmap=True, low_cpu_mem_usage=True)", "they are what takes most beside the model")
}

func helpLittle(f *Failure) {
	if f.Verdict == verdict.OtherProcess || f.Verdict == verdict.TrulyFull || f.Verdict == verdict.Unknown {
		f.help("nvidia-smi at the time of the error", "it tells whether the device is full, and which processes have it")
	}
	switch f.Source {
	case "cuBLAS", "cuDNN", "cuSOLVER", "cuSPARSE", "cuFFT":
		f.help("free memory beside the allocator: torch.cuda.set_per_process_memory_fraction(0.9), or a smaller batch", "the library asks the driver for its work space, while PyTorch's cache has the rest")
		f.help("CUDA_LAUNCH_BLOCKING=1", "an index out of range or another earlier failure shows in this form too")
	case "ONNX Runtime":
		f.help("the provider's gpu_mem_limit and arena_extend_strategy kSameAsRequested", "an arena that doubles asks for more than is needed")
	case "Vulkan":
		f.help("smaller buffers: -ngl, -c, -ub", "drivers limit a single allocation, often to 4 GiB")
	case "RMM":
		f.help("rmm.mr.PoolMemoryResource with a larger maximum_pool_size, or rmm.reinitialize(managed_memory=True)", "the pool may be the limit")
	}
	f.help("gpumemtrack record -o memory.png -- COMMAND", "it shows how the device fills up until the error")
}

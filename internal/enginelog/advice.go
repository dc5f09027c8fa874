package enginelog

import (
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Advice says what would help, what costs least first, with the engine's own options; nil if the log shows no shortage.
func (r *Report) Advice() []string {
	switch f := r.Failure; {
	case f == nil:
		return r.offload()
	case r.Engine == VLLM:
		return r.vllmAdvice(f)
	case r.Engine == SGLang:
		return []string{
			"Raise --mem-fraction-static: the KV cache gets what is left of that part of the free memory behind the weights.",
			"Divide the weights over more GPUs with --tp, or load a quantized model.",
		}
	case r.Engine == LlamaCpp || r.Engine == Ollama:
		return llamaAdvice(f)
	}
	return nil
}

// offload says what keeps layers of ollama and llama.cpp off the devices.
func (r *Report) offload() []string {
	c := r.Capacity
	if c.Layers == nil || c.OnDevice == nil || *c.OnDevice >= *c.Layers || r.Projects == nil || r.Projects.Needs <= r.Projects.Free {
		return nil
	}
	lacks := r.Projects.Needs - r.Projects.Free
	return []string{fmt.Sprintf("%v more would hold all %d layers: a shorter context, a KV cache of fewer bits, or a model of fewer bits frees it.", lacks, *c.Layers)}
}

func (r *Report) vllmAdvice(f *Failure) []string {
	switch f.Reason {
	case RequestTooLong:
		return r.tooLong(f)
	case NoMemoryForCache:
		advice := r.moreOf(shortOf(r))
		return append(advice,
			"Lower --max-num-batched-tokens: the activations of the largest step shrink with it.",
			"Divide the weights over more GPUs with --tensor-parallel-size, or load a quantized model.")
	case DeviceInUse:
		advice := []string{"Stop the other process: nvidia-smi names those on the device. One that was killed may need some seconds."}
		if d := r.Find(f.Device); d != nil && d.Free != nil && d.Total != nil && *d.Total > 0 {
			if fits := math.Floor(100*float64(*d.Free)/float64(*d.Total))/100 - 0.01; fits > 0 {
				advice = append(advice, fmt.Sprintf("Or take less: --gpu-memory-utilization %.2f.", fits))
			}
		}
		return advice
	case MemoryReleased:
		return []string{"Start again when the other processes on the device take and release nothing: vLLM measures by the device's free memory."}
	case AllocationFailed:
		if f.Of == Activations {
			return []string{"Lower --max-num-seqs: the sampler was tried with that many requests at once.", "Or lower --gpu-memory-utilization, which leaves more beside the KV cache."}
		}
		return []string{"Divide the weights over more GPUs with --tensor-parallel-size, or load a quantized model.", "Or keep a part in the machine's memory: --cpu-offload-gb."}
	}
	return nil
}

// tooLong says how a request of the whole context length would fit.
func (r *Report) tooLong(f *Failure) []string {
	var advice []string
	if f.Fits != nil && *f.Fits > 0 {
		advice = append(advice, fmt.Sprintf("Shorten the context length: --max-model-len %d.", *f.Fits))
	}
	short := alloc.Bytes(0)
	if f.Needs != nil && f.Has != nil {
		short = *f.Needs - *f.Has
	}
	advice = append(advice, r.moreOf(short)...)
	return append(advice,
		"Keep keys and values in 8 bits, if they are in 16: --kv-cache-dtype fp8.",
		"Divide the model over more GPUs with --tensor-parallel-size.")
}

// shortOf returns what lacks for a KV cache to begin with.
func shortOf(r *Report) (short alloc.Bytes) {
	for _, d := range r.Devices {
		if cache, ok := d.Get(Cache); ok {
			short = max(short, -cache)
		}
	}
	return short
}

// moreOf says which gpu_memory_utilization would give that much more.
func (r *Report) moreOf(short alloc.Bytes) []string {
	const most = 0.98
	for _, d := range r.Devices {
		now := r.Capacity.Fraction
		if d.Total == nil || *d.Total <= 0 || now == nil || short <= 0 {
			continue
		}
		want := math.Ceil(100*(*now+float64(short)/float64(*d.Total))) / 100
		if want <= most {
			return []string{fmt.Sprintf("Let vLLM take more of the device: --gpu-memory-utilization %.2f, for %.2f now.", want, *now)}
		}
		return []string{fmt.Sprintf("No --gpu-memory-utilization gives the %v that lack: with %.2f it takes nearly all of the device.", short, most)}
	}
	return []string{"Raise --gpu-memory-utilization, if the device has memory that it leaves."}
}

func llamaAdvice(f *Failure) []string {
	var advice []string
	if f.Reason == BufferTooLarge {
		advice = append(advice, "Memory may be free: Vulkan's driver limits one buffer, often to 4 GiB or less. The advice below makes this buffer smaller; so does another backend.")
	}
	switch f.Of {
	case Weights:
		return append(advice, "Put fewer layers on the device: -ngl N, or of a mixture of experts --n-cpu-moe N.", "Or load a file of fewer bits.")
	case Cache:
		return append(advice, "Shorten the context: -c N. All slots of a server share it.", "Keep keys and values in 8 bits, with flash attention: -fa on -ctk q8_0 -ctv q8_0.", "Or put fewer layers on the device: -ngl N.")
	case Compute:
		return append(advice, "Switch flash attention on: -fa on. Without it the scores of all heads are held, and grow with the context.", "Process fewer tokens at once: -ub 256, for 512.", "Or shorten the context: -c N.")
	}
	return append(advice, "Shorten the context (-c N), or put fewer layers on the device (-ngl N).")
}

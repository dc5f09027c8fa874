package enginelog

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// conclude says what follows from several lines.
func conclude(r *Report) {
	slices.SortStableFunc(r.Devices, func(a, b *Device) int { return cmp.Compare(hostOrder(a), hostOrder(b)) })
	for _, d := range r.Devices {
		if r.Engine == VLLM {
			noteOthers(r, d)
			noteMeanwhile(r, d)
		}
	}
	r.Devices = slices.DeleteFunc(append([]*Device{}, r.Devices...), func(d *Device) bool { return !d.known() })
	for _, d := range r.Devices {
		d.Rows = append([]Row{}, d.Rows...)
		if f := r.Failure; f != nil && f.Reason == RequestTooLong && f.Needs == nil && f.Tokens != nil && f.Fits != nil && *f.Fits > 0 {
			if has, ok := d.Get(Cache); ok { // vLLM before 0.8 says only the tokens
				needs := alloc.Bytes(float64(has) / float64(*f.Fits) * float64(*f.Tokens))
				f.Needs, f.Has = &needs, &has
			}
		}
	}
}

// hostOrder puts the machine's memory behind that of the devices.
func hostOrder(d *Device) int {
	if d.OnHost() {
		return 1
	}
	return 0
}

// noteOthers notes what others held when the engine began.
func noteOthers(r *Report, d *Device) {
	const context = alloc.GiB // of the engine itself, and what the driver keeps
	if d.Total == nil || d.Free == nil {
		return
	}
	if held := *d.Total - *d.Free; held > context {
		r.note("%s%v of %v were in use before vLLM began: by other processes, or one that was not yet gone.", onDevice(d), held, *d.Total)
	}
}

// usualOutside is the most that CUDA's context, NCCL and libraries take outside PyTorch.
const usualOutside = 4 * alloc.GiB

// noteMeanwhile notes memory that another process took while vLLM measured its own. vLLM takes the difference of the
// device's free memory for its own, so it shows as memory outside PyTorch, or as a cache that is smaller than what
// the limit leaves.
func noteMeanwhile(r *Report, d *Device) {
	outside, known := d.Get(Outside)
	if known && outside > usualOutside {
		r.note("%s%v were taken outside PyTorch while vLLM measured itself. CUDA's context and NCCL take less than %v: the rest went to another process on the device.", onDevice(d), outside, usualOutside)
		return
	}
	weights, loaded := d.Get(Weights)
	if d.Free != nil && d.Left != nil && loaded && !known {
		if taken := *d.Free - *d.Left - weights; taken > usualOutside {
			r.note("%sWhile vLLM loaded and measured itself the device lost %v more than the weights: to another process on the device.", onDevice(d), taken)
			return
		}
	}
	cache, cached := d.Get(Cache)
	activations, ran := d.Get(Activations)
	if d.Limit == nil || !cached || !ran || !loaded {
		return
	}
	graphs, _ := d.Get(Graphs)
	if lacks := *d.Limit - weights - activations - outside - graphs - cache; lacks > usualOutside {
		r.note("%s%v of the %v that vLLM may take are in none of its parts: another process on the device took them meanwhile.", onDevice(d), lacks, *d.Limit)
	}
}

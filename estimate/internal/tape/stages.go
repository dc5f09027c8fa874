package tape

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Stage is the range of operations that one device of a pipeline runs.
type Stage struct {
	Begin, End    int32
	Load          Load
	largestModule int64 // bytes of its weights
	Last          bool
}

// Stages divides the model among the devices of a pipeline.
func (t *Tape) Stages(h *Holding) ([]Stage, error) {
	n := int32(len(t.Ops))
	if n == 0 || t.Cfg.Sharding.Pipeline == 1 {
		s := Stage{End: n, Load: h.Total, Last: true}
		for _, l := range h.Modules {
			s.largestModule = max(s.largestModule, l.Weights)
		}
		return []Stage{s}, nil
	}
	loads, largest, first := t.loads(h)
	pieces := append([]int32{0}, t.cuts()...)
	if len(pieces) < t.Cfg.Sharding.Pipeline {
		return nil, fmt.Errorf("estimate %s: the layers cannot be cut into %d stages: want at most %d, since a cut is where a single tensor passes",
			t.Cfg.Name, t.Cfg.Sharding.Pipeline, len(pieces))
	}
	prefix := make([]int64, n+1)
	for i, l := range loads {
		prefix[i+1] = prefix[i] + l.Weights
	}
	bounds := append(balance(pieces, prefix, t.Cfg.Sharding.Pipeline), n)
	stages := make([]Stage, len(bounds)-1)
	for i := range stages {
		s := Stage{Begin: bounds[i], End: bounds[i+1], Last: i == len(stages)-1}
		for k := s.Begin; k < s.End; k++ {
			s.Load.add(loads[k])
			s.largestModule = max(s.largestModule, largest[k])
		}
		stages[i] = s
	}
	h.untie(stages, func(module int) int {
		return slices.IndexFunc(stages, func(s Stage) bool { return first[module] < s.End })
	}, t.Cfg.Sharding)
	return stages, nil
}

// loads returns for each operation the parameters of its layer, if it is the first operation of
// that layer, and otherwise nothing; largest is the largest module among them, and first the first
// operation of each module. Parameters of layers without operations belong to the first operation.
func (t *Tape) loads(h *Holding) (loads []Load, largest []int64, first []int32) {
	loads, largest, first = make([]Load, len(t.Ops)), make([]int64, len(t.Ops)), make([]int32, len(h.Modules))
	placed := make([]bool, len(h.Modules))
	for i := range t.Ops {
		if m := t.moduleOf(i); m >= 0 && !placed[m] {
			placed[m], first[m] = true, int32(i)
		}
	}
	for m, l := range h.Modules {
		loads[first[m]].add(l)
		largest[first[m]] = max(largest[first[m]], l.Weights)
	}
	return loads, largest, first
}

// cuts returns the operations before which only one tensor is alive: a pipeline can be cut there.
func (t *Tape) cuts() []int32 {
	n := len(t.Ops)
	crossing := make([]int32, n+2) // by how much the number of live tensors changes before each operation
	for i := range t.Ops {
		if o := &t.Ops[i]; !o.View && !o.InPlace && o.Parts == 0 {
			s := t.Storages[o.Out]
			crossing[i+1]++
			crossing[max(int(s.read), i)+1]--
		}
	}
	var cuts []int32
	alive := int32(0)
	for i := range n {
		if alive += crossing[i]; i > 0 && alive == 1 {
			cuts = append(cuts, int32(i))
		}
	}
	return cuts
}

// balance chooses where the stages begin, so that the largest stage is as small as possible.
func balance(pieces []int32, prefix []int64, stages int) []int32 {
	total := prefix[len(prefix)-1]
	low, high := total/int64(stages), total
	best := split(pieces, prefix, stages, high)
	for low < high {
		mid := low + (high-low)/2
		if bounds := split(pieces, prefix, stages, mid); bounds != nil {
			best, high = bounds, mid
		} else {
			low = mid + 1
		}
	}
	return best
}

// split divides the pieces into stages that are not above the limit, or returns nil if that cannot
// be. It leaves at least one piece for each later stage.
func split(pieces []int32, prefix []int64, stages int, limit int64) []int32 {
	end := func(i int) int64 {
		if i+1 < len(pieces) {
			return prefix[pieces[i+1]]
		}
		return prefix[len(prefix)-1]
	}
	bounds := []int32{0}
	begin := int64(0)
	for i := range pieces {
		if i > 0 {
			left := len(pieces) - i
			if need := stages - len(bounds); need > 0 && (end(i)-begin > limit || left == need) {
				bounds = append(bounds, pieces[i])
				begin = prefix[pieces[i]]
			}
		}
		if end(i)-begin > limit {
			return nil
		}
	}
	return bounds
}

// Fetched returns the memory for whole layers on a device that keeps only parts of the weights, as
// with ZeRO stage 3, or none, as with weights in the memory of the CPU: twice the largest layer,
// since the next one is fetched ahead.
func (t *Tape) Fetched(s Stage) int64 {
	if z := t.Cfg.Sharding; t.Cfg.Offload != setting.OffloadParameters && (z.ZeRO < 3 || z.Data == 1) {
		return 0
	}
	return 2 * s.largestModule
}

package tape

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// unitName returns the name of the unit of the layer at a path: that up to its first number, or "" outside of all.
func unitName(at string) string {
	for end := 0; end < len(at); {
		next := strings.IndexByte(at[end:], '.')
		if next < 0 {
			next = len(at) - end
		}
		if part := at[end : end+next]; part != "" && strings.Trim(part, "0123456789") == "" {
			return at[:end+next]
		}
		end += next + 1
	}
	return ""
}

// Where layers outside of numbered blocks are, and the names of their units.
const (
	rootUnit  = ""
	firstUnit = "first"
	lastUnit  = "last"
)

// Gather divides the operations and the parameters as FSDP2 does, in the order in which the units begin. The layers outside
// of numbered blocks are one unit, which is gathered as long as the model runs, or with Ends two: those before the first
// block and those after it (torchtitan/distributed/fsdp.py, apply_fsdp_to_decoder).
func Gather(t *Tape, h *Holding) {
	if !t.Cfg.Gathers() {
		return
	}
	s := t.Cfg.Sharding
	names := make([]string, len(h.Modules))
	seen := false
	for m := range h.Modules {
		names[m] = unitName(t.Decl.Modules[m].Path)
		switch {
		case names[m] != "":
			seen = true
		case s.Ends && seen:
			names[m] = lastUnit
		case s.Ends:
			names[m] = firstUnit
		}
	}
	var all []Unit
	at := map[string]int{}
	of := func(name string, op int32) *Unit {
		i, ok := at[name]
		if !ok {
			i = len(all)
			at[name] = i
			all = append(all, Unit{Begin: op, Stays: name == rootUnit || name == lastUnit})
		}
		return &all[i]
	}
	if !s.Ends {
		of(rootUnit, 0)
	}
	for i := range t.Ops {
		name := rootUnit
		if row := t.Ops[i].Row; row >= 0 {
			if name = unitName(t.Rows[row].Path); name == "" && t.Rows[row].Owner >= 0 {
				name = names[t.Rows[row].Owner]
			}
		}
		if name == rootUnit && s.Ends {
			continue // such as the sum of losses, which reads no parameters
		}
		of(name, int32(i)).End = int32(i) + 1
	}
	t.UnitOf, t.Owned = make([]int32, len(h.Modules)), make([]int64, len(h.Modules))
	for m := range h.Modules {
		t.Owned[m] = 1
		i, ok := at[names[m]]
		if !ok {
			i = len(all) - 1 // parameters that no operation reads
		}
		t.UnitOf[m] = int32(max(0, i))
	}
	if len(all) == 0 {
		return
	}
	for _, p := range h.Each {
		u := &all[t.UnitOf[p.Module]]
		if n := p.Load.Whole; n > 0 {
			u.Params = append(u.Params, n)
			u.Gathered += n
		}
		u.Kept += p.Load.Gradients
		if p.Expert {
			t.Owned[p.Module] = int64(max(1, s.Experts))
		}
		u.Reduced += p.Load.Gradients / t.Owned[p.Module]
	}
	for i := range all {
		u := &all[i]
		u.Kept = setting.Part(u.Kept, s.Data)
		u.Number, u.Group = int32(i), int32(2*len(h.Modules)+i)+1
		if t.Cfg.Weights != t.Cfg.Activations {
			u.Cast = setting.Part(u.Gathered, s.Data)
		}
		if u.Stays && !s.Ends {
			u.End = int32(len(t.Ops))
		}
	}
	t.Units = all
}

// Fetched returns the memory for whole layers on a device that keeps only parts of the weights, as with ZeRO stage 3, or
// none, as with weights in the memory of the CPU: twice the largest layer, since the next one is fetched ahead. In training
// that is 0 where Units are gathered.
func Fetched(t *Tape, s Stage, training bool) int64 {
	z := t.Cfg.Sharding
	if t.Cfg.Offload != setting.OffloadParameters && (z.ZeRO < 3 || z.Data == 1 || training && t.Cfg.Gathers()) {
		return 0
	}
	if t.Cfg.DeepSpeed() {
		bits := int64(t.Cfg.Weights.Bits())
		return z.Live(s.Load.Weights*8/bits, s.largestModule*8/bits) * bits / 8
	}
	return 2 * s.largestModule
}

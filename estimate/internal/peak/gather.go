package peak

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/timeline"
)

// gathering follows what FSDP2 allocates while a model trains (torch/distributed/fsdp/_fully_shard, _fsdp_param_group.py
// and _fsdp_collectives.py of 2.15). Each unit of layers is gathered into a buffer, and copied from it into its
// parameters. In the forward pass the next unit frees the buffer; in the backward pass the copy does, and then the
// next unit to run is gathered into a new one. When a unit's backward pass is over its gradients are copied into another
// buffer, which the next unit frees, and each device keeps a part of the sum. The zero value follows nothing.
type gathering struct {
	a     *alive
	units []gatheredUnit // in the order in which their forward passes end

	buffer  part // of the unit that was gathered last
	reduced part // gradients of the unit that ran backward last
}

// gatheredUnit is a unit with what exists of it.
type gatheredUnit struct {
	tape.Unit
	params    []int32 // handles in the log; of a unit that is not whole there are none
	whole     bool
	ahead     part // the buffer into which the unit was gathered before it is needed
	gradients []part
	stays     int64 // bytes of gradients that a device keeps
}

// part is memory with its handle in the log.
type part struct {
	bytes  int64
	handle int32
}

func newGathering(a *alive) *gathering {
	g := &gathering{a: a}
	for _, u := range a.t.Units {
		if u.End > a.begin && u.Begin < a.end && u.Gathered > 0 {
			u.Begin, u.End = max(u.Begin, a.begin), min(u.End, a.end)
			g.units = append(g.units, gatheredUnit{Unit: u})
		}
	}
	slices.SortStableFunc(g.units, func(a, b gatheredUnit) int { return cmp.Compare(a.End, b.End) })
	return g
}

// alloc counts memory for the work of a stream.
func (g *gathering) alloc(bytes int64, stream uint8) part {
	g.a.bytes += bytes
	return part{bytes, g.a.log.AllocOn(bytes, stream)}
}

// free gives memory back and returns that there is none.
func (g *gathering) free(p part) part {
	if p.bytes > 0 {
		g.a.bytes -= p.bytes
		g.a.log.Free(p.handle)
	}
	return part{}
}

// gather returns the buffer with the whole parameters of a unit.
func (g *gathering) gather(u *gatheredUnit, op int32, backward bool) part {
	if u.ahead.bytes > 0 {
		buffer := u.ahead
		u.ahead = part{}
		return buffer
	}
	cast := g.alloc(u.Cast, timeline.Gathering)
	buffer := g.alloc(u.Gathered, timeline.Gathering)
	g.a.note(op, 0, g.a.gradients, backward)
	g.free(cast)
	return buffer
}

// copies makes the parameters of a unit.
func (g *gathering) copies(u *gatheredUnit, op int32, backward bool) {
	u.whole = true
	u.params = g.a.log.AllocAll(u.params, u.Params...)
	g.a.bytes += u.Gathered
	g.a.note(op, 0, g.a.gradients, backward)
}

// drop gives the whole parameters of a unit back.
func (g *gathering) drop(u *gatheredUnit) {
	if !u.whole {
		return
	}
	u.whole = false
	g.a.bytes -= u.Gathered
	g.a.log.FreeAll(u.params)
	u.params = u.params[:0]
}

// before gathers the units whose forward pass begins with operation i.
func (g *gathering) before(i int32) {
	for n := range g.units {
		if u := &g.units[n]; u.Begin == i {
			buffer := g.gather(u, i, false)
			g.free(g.buffer)
			g.copies(u, i, false)
			g.buffer = buffer
		}
	}
}

// after gives back the units whose forward pass ends with operation i.
func (g *gathering) after(i int32) {
	for n := range g.units {
		if u := &g.units[n]; u.End == i+1 && !u.Stays {
			g.drop(u)
		}
	}
}

// turn ends the forward pass.
func (g *gathering) turn() { g.buffer = g.free(g.buffer) }

// beforeBackward makes the units whole whose backward pass begins with operation i, and gathers the ones before them.
func (g *gathering) beforeBackward(i int32) {
	for n := range g.units {
		u := &g.units[n]
		if u.End != i+1 {
			continue
		}
		if !u.whole {
			buffer := g.gather(u, i, true)
			g.copies(u, i, true)
			g.free(buffer)
		}
		if n > 0 && !g.units[n-1].whole && g.units[n-1].ahead.bytes == 0 {
			g.units[n-1].ahead = g.gather(&g.units[n-1], i, true)
		}
	}
}

// gradient makes the whole gradients of a group of parameters, of which each device will keep a part.
func (g *gathering) gradient(of tape.Gradient) {
	if of.Group == 0 || of.Stays <= 0 {
		return
	}
	c, module := g.a.t.Cfg, int(of.Group-1)%len(g.a.t.UnitOf)
	for n := range g.units {
		u := &g.units[n]
		if u.Number != g.a.t.UnitOf[module] {
			continue
		}
		u.stays += of.Stays
		whole := of.Stays * int64(c.Sharding.Data) / g.a.t.Owned[module] * int64(c.Activations.Bits()) / int64(max(1, c.Gradients.Bits()))
		u.gradients = append(u.gradients, g.alloc(whole, 0))
	}
}

// afterBackward sums up the gradients of the units whose backward pass ends with operation i. Where there are gradients of
// an earlier batch, the sum is added to them.
func (g *gathering) afterBackward(i int32, there bool) {
	for n := range g.units {
		u := &g.units[n]
		if u.Begin != i {
			continue
		}
		g.drop(u)
		g.reduced = g.free(g.reduced)
		if u.stays == 0 {
			continue
		}
		g.reduced = g.alloc(u.Reduced, 0)
		g.a.note(i, 0, g.a.gradients, true)
		for _, p := range u.gradients {
			g.free(p)
		}
		if u.gradients = nil; there {
			g.a.note(i, u.stays, g.a.gradients, true)
		} else {
			g.a.gradients += u.stays
			g.a.note(i, 0, g.a.gradients, true)
		}
		g.a.log.Gradients(u.Group, 0)
		u.stays = 0
	}
}

// end gives back what is left when the backward pass is over.
func (g *gathering) end() { g.reduced = g.free(g.reduced) }

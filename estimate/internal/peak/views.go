package peak

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// join makes the gradient of a tensor of those of its parts.
func (g *gradientSet) join(o *tape.Recorded) (extra int64) {
	t, found := g.a.t, false
	for id := o.Out; id < o.Out+o.Parts; id++ {
		if from := g.of[id]; from != 0 {
			g.of[id], found = 0, true
			g.done = append(g.done, from)
		} else {
			extra += t.Storages[id].Bytes // zeros
		}
	}
	if !found {
		return 0
	}
	return extra + g.give(t.Refs[o.In])
}

package snapshot

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// common shortens p to what it has in common with q.
func pathCommon(p mem.Path, q mem.Path) mem.Path {
	n := pathSameCalls(p, q)
	p = slices.Clone(p[:n])
	for i := range p {
		if p[i] != q[i] {
			p[i].Line = 0
		}
	}
	return p
}

// calls names the functions.
func pathCalls(p mem.Path) string {
	var b strings.Builder
	for _, f := range p {
		b.WriteString(f.Function)
		b.WriteByte('\n')
	}
	return b.String()
}

// sameCalls returns how many functions both begin with.
func pathSameCalls(p mem.Path, q mem.Path) int {
	n := 0
	for n < min(len(p), len(q)) && p[n].Function == q[n].Function {
		n++
	}
	return n
}

package snapshot

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// compare orders stacks by their frames. Those of one source are often the same.
func stackCompare(s mem.Stack, t mem.Stack) int {
	if len(s) == len(t) && len(s) > 0 && &s[0] == &t[0] {
		return 0
	}
	return slices.CompareFunc(s, t, mem.Frame.Compare)
}

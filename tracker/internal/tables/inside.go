package tables

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// The values of package snapshot keep their lists to themselves: a program reads them by their methods. Package snapshot
// sets these functions, so that the packages that make such values, or walk over a million entries, reach the lists.
var (
	// Of returns the lists of a *snapshot.Snapshot. Only who makes it writes to them.
	Of func(s any) *Tables
	// OfHistory returns the history of a *snapshot.Dump, which Exists unless there is none. Only who makes the dump writes to it.
	OfHistory func(d any) *HistoryTables
	// SetDelta makes the sums the Delta of a *snapshot.Mark, in order. It leaves out groups and lines whose sum is zero.
	SetDelta func(m any, sums *Sums)
	// AppendDelta appends the Delta of a *snapshot.Mark as its String prints it, with a line break at its end.
	AppendDelta func(b []byte, m any) []byte
	// MemoryLines prints the types of memory of a *snapshot.Mark that have live buffers, apart from plain device memory.
	MemoryLines func(m any) string
)

// In returns a *snapshot.Snapshot with these lists.
func In[S any](s *S, t Tables) *S {
	*Of(s) = t
	return s
}

// InHistory returns a *snapshot.Dump with this history.
func InHistory[D any](d *D, t HistoryTables) *D {
	*OfHistory(d) = t
	return d
}

// ByMemory counts buffers by their type of memory.
type ByMemory [alloc.ImportedMemory + 1]mem.Tally

// Map returns the types that have buffers; nil if none has.
func (b *ByMemory) Map() (types map[alloc.Memory]mem.Tally) {
	for m, t := range b {
		if t == (mem.Tally{}) {
			continue
		}
		if types == nil {
			types = make(map[alloc.Memory]mem.Tally)
		}
		types[alloc.Memory(m)] = t
	}
	return types
}

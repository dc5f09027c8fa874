package snapshot

import "github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"

// The packages of this module reach the lists of snapshots and histories by these.
func init() {
	tables.Of = func(s any) *tables.Tables { return &s.(*Snapshot).tables }
	tables.OfHistory = func(h any) *tables.HistoryTables { return &h.(*History).tables }
	tables.SetDelta = func(m any, sums *tables.Sums) { m.(*Mark).Delta = newDelta(sums) }
}

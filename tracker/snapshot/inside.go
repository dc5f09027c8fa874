package snapshot

import "github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"

// The packages of this module reach the lists of snapshots and dumps by these.
func init() {
	tables.Of = func(s any) *tables.Tables { return &s.(*Snapshot).tables }
	tables.OfHistory = func(d any) *tables.HistoryTables { return &d.(*Dump).history }
	tables.AppendDelta = func(b []byte, m any) []byte { return m.(*Mark).Delta.appendTo(b) }
	tables.MemoryLines = func(m any) string { return m.(*Mark).memories() }
	tables.SetDelta = func(m any, sums *tables.Sums) { m.(*Mark).Delta = newDelta(sums) }
}

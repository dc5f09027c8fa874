package tables

import "fmt"

// Snapshot is the field of a snapshot.Snapshot that holds its Tables. Its content is closed to other modules, which can
// copy it but not import this package.
type Snapshot struct{ tables Tables }

// Wrap returns the field with these tables.
func Wrap(t Tables) Snapshot { return Snapshot{t} }

// Of returns the tables in the field. Only the maker of the snapshot writes to them.
func Of(s *Snapshot) *Tables { return &s.tables }

// String says how much the tables hold: "3 buffers of 2 call stacks".
func (s Snapshot) String() string {
	return fmt.Sprintf("%d buffers of %d call stacks", len(s.tables.Allocations), len(s.tables.Sites)+len(s.tables.Retired))
}

// History is the field of a snapshot.Dump that holds its HistoryTables. Its content is closed to other modules, as that of
// Snapshot.
type History struct{ tables HistoryTables }

// WrapHistory returns the field with these tables.
func WrapHistory(t HistoryTables) History { return History{t} }

// OfHistory returns the tables in the field, which Exist unless there is no history. Only the maker of the dump writes to
// them.
func OfHistory(h *History) *HistoryTables { return &h.tables }

// String says how many events there are: "65536 events, after 1204 that were dropped".
func (h History) String() string {
	said := fmt.Sprintf("%d events", len(h.tables.Events))
	if n := h.tables.First; n > 0 {
		said += fmt.Sprintf(", after %d that were dropped", n)
	}
	return said
}

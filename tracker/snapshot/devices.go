package snapshot

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Devices are snapshots of several devices of one process, taken one after the other.
type Devices []*Snapshot

// String prints a line for each device and one for all of them, and then the live table of each.
func (d Devices) String() string {
	rows := [][]string{{"Device", "Live", "Peak", "Reserved", "Pending", "Driver used"}}
	var live mem.Tally
	var reserved, pending alloc.Bytes
	for _, s := range d {
		rows = append(rows, []string{s.name(), s.Live.String(), s.Peak.String(), s.Reserved.String(), s.Pending.String(), orUnknown(s.DriverUsed)})
		live = live.Add(s.Live)
		reserved, pending = reserved+s.Reserved, pending+s.Pending
	}
	if len(d) > 1 { // the peaks are not of one moment
		rows = append(rows, []string{fmt.Sprintf("%d devices", len(d)), live.String(), "", reserved.String(), pending.String(), ""})
	}
	var b strings.Builder
	writeColumns(&b, rows)
	for _, s := range d {
		if table := s.Sub(nil).String(); table != "" {
			fmt.Fprintf(&b, "\n%s\n%s\n", s.name(), table)
		}
	}
	return b.String()
}

// name is the device's name and ordinal: "Simulated GPU [0]".
func (s *Snapshot) name() string {
	return fmt.Sprintf("%s [%d]", text.Line(s.Device), s.Ordinal)
}

func orUnknown(n alloc.Bytes) string {
	if n < 0 {
		return "unknown"
	}
	return n.String()
}

// writeColumns writes rows with their columns aligned.
func writeColumns(b *strings.Builder, rows [][]string) {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len(cell))
		}
	}
	for _, row := range rows {
		var line []byte
		for i, cell := range row {
			line = text.AppendPadded(line, cell, width[i]+2)
		}
		b.WriteString(strings.TrimRight(string(line), " ") + "\n")
	}
}

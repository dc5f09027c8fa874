package report

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// stamp is how the report writes a time, and stampInName how the name of a file does. A
// colon in a name reads as a host to scp, and is not allowed on Windows.
const (
	stamp       = "02-Jan-06-15:04:05"
	markStamp   = stamp + ".000"
	stampInName = "02-Jan-06-15-04-05"
)

// appendHeader appends the report's first lines.
func appendHeader(b []byte, at time.Time, device string, levels snapshot.Levels) []byte {
	b = append(b, "GPU Memory Track | "...)
	b = at.AppendFormat(b, stamp)
	b = append(b, " | "...)
	b = text.Printable(append(b, device...), len(b))
	b = append(b, "\nTotal Tensor Used Memory:"...)
	b = appendMiB(b, levels.Live.Bytes)
	b = append(b, "      Total Used Memory:"...)
	b = appendMiB(b, levels.DriverUsed)
	return append(bytes.TrimRight(b, " "), "\n\n"...)
}

// appendMark appends one mark's block: what changed, then where Track was
// called, on which device if it is not the first one, when, and the totals there.
func appendMark(b []byte, m *snapshot.Mark, device string) []byte {
	if len(m.Delta) > 0 {
		b = m.Delta.Append(append(b, '\n'))
	}
	b = append(b, "\nAt "...)
	b = text.Printable(append(b, callsite.Base(m.CallSite.File)...), len(b))
	b = fmt.Appendf(b, " line %d: ", m.CallSite.Line)
	b = text.Printable(append(b, path.Base(m.CallSite.Function)...), len(b))
	if device != "" {
		b = append(b, " on "...)
		b = text.Printable(append(b, device...), len(b))
	}
	b = m.Time.AppendFormat(append(b, " | "...), markStamp)
	b = append(b, "\nTotal Tensor Used Memory:"...)
	b = appendMiB(b, m.Live.Bytes)
	b = append(b, " Total Allocated Memory:"...)
	b = appendMiB(b, m.Reserved+m.Registered)
	b = append(b, "\n      Driver Used Memory:"...)
	b = appendMiB(b, m.DriverUsed)
	b = append(b, "              Untracked:"...)
	b = appendMiB(b, m.Untracked())
	if m.Pending > 0 {
		b = appendMiB(append(b, " Pending:"...), m.Pending)
	}
	b = append(bytes.TrimRight(b, " "), '\n')
	for _, line := range tables.MemoryLines(m.Memory) {
		b = fmt.Appendf(b, "      %s\n", line)
	}
	return b
}

// appendMiB appends an amount as the totals of gpu_mem_track print it: always in MiB, so that
// amounts can be compared at a glance, unless that would round to 0. A negative amount is unknown.
func appendMiB(b []byte, n alloc.Bytes) []byte {
	switch {
	case n < 0:
		return text.AppendPadded(b, "unknown", 11)
	case 0 < n && n < alloc.MiB/20:
		return text.AppendPadded(b, n.String(), 11)
	}
	from := len(b)
	b = strconv.AppendFloat(b, float64(n)/float64(alloc.MiB), 'f', 1, 64)
	return append(text.Pad(b, from, 7), " MiB"...)
}

// appendMissing says that marks are not there, and why.
func appendMissing(b []byte, marks int, why string) []byte {
	return fmt.Appendf(b, "\n%d marks are missing here: %s\n", marks, why)
}

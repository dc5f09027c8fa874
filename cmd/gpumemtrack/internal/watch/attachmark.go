package watch

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// attachedMark is a mark as a line of JSON. docs/command-line.schema.json describes it.
type attachedMark struct {
	Schema  string          `json:"schema"`
	Process snapshot.Origin `json:"process"`
	Device  string          `json:"device"`
	Ordinal int             `json:"ordinal"`
	Before  *alloc.Bytes    `json:"before_bytes"` // held before watching began; nil means unknown
	Mark    *snapshot.Mark  `json:"mark"`
	End     *attachedSums   `json:"end,omitempty"` // in the last line of a process and device
}

const attachSchema = "gpumemtrack.attach/1"

func newAttachedMark(s *attach.Source) attachedMark {
	out := attachedMark{Schema: attachSchema, Process: s.Origin(), Mark: s.Track()}
	out.Device, out.Ordinal = s.Device()
	if before := s.PriorBytes(); before >= 0 {
		out.Before = &before
	}
	return out
}

// writeMark prints what changed since the previous mark, in one Write. There is a table only if
// anything changed. The error is the writer's.
func (o attachOptions) writeMark(w io.Writer, s *attach.Source) error {
	if o.json != "" {
		return cli.WriteJSON(w, newAttachedMark(s))
	}
	return writeAttachedTable(w, s, s.Track())
}

func writeAttachedTable(w io.Writer, s *attach.Source, m *snapshot.Mark) error {
	lines := changesByLine(m.Delta)
	if len(lines) == 0 {
		return nil
	}
	device, ordinal := s.Device()
	var text bytes.Buffer
	fmt.Fprintf(&text, "\n%s | %v, %s [%d] | %v live\n", m.Time.Format("15:04:05"), s.Origin(), device, ordinal, m.Live.Add(m.Host()))
	const most = 40
	for _, l := range lines[:min(len(lines), most)] {
		fmt.Fprintf(&text, "%-26s | %-8v | %v\n", signedTally(l.Tally), l.use, l.Frame)
	}
	if rest := len(lines) - most; rest > 0 {
		fmt.Fprintf(&text, "and %d lines of code more\n", rest)
	}
	_, err := w.Write(text.Bytes())
	return err
}

// signedTally prints a change. The number of buffers may shrink while their bytes grow.
func signedTally(t mem.Tally) string {
	return fmt.Sprintf("%+d, %s", t.Count, cli.Signed(t.Bytes))
}

type lineChange struct {
	mem.CallSiteTally
	use string
}

// useOf returns the kind of buffers or, if only the program knows it, the type of their memory.
func useOf(kind mem.Kind, memory alloc.Memory) string {
	if kind == "" && memory != alloc.UnknownMemory {
		return memory.String()
	}
	return kind.String()
}

// changesByLine lists changes by line of code: first those that grew, the largest first.
func changesByLine(d snapshot.Delta) (all []lineChange) {
	for _, c := range d {
		for _, site := range c.CallSites {
			all = append(all, lineChange{site, useOf(c.Kind, c.Memory)})
		}
	}
	slices.SortStableFunc(all, func(x, y lineChange) int {
		if x.Bytes > 0 != (y.Bytes > 0) {
			return cmp.Compare(y.Bytes, x.Bytes)
		}
		return cmp.Or(cmp.Compare(max(y.Bytes, -y.Bytes), max(x.Bytes, -x.Bytes)), cmp.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line), cmp.Compare(x.Function, y.Function), cmp.Compare(x.use, y.use))
	})
	return all
}

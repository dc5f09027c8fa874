package inspect

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

func addMomentFlag(cmd *cobra.Command, at *string) {
	cmd.Flags().StringVar(at, "at", "", "the `MOMENT`: end, peak, oom, or the number of an event (default: oom if the file ends with such an error, else end)")
	cmd.Flags().Lookup("at").DefValue = ""
	cli.Complete(cmd, "at", "end", "peak", "oom")
}

// usageAt returns what a file holds at a moment. The moment is that of one device: of the one whose request failed, or of the
// one with most memory. The other devices are shown at the same time.
func usageAt(f *files.File, word string) (*export.Usage, rewind.Moment, error) {
	if f.Dump == nil {
		end := rewind.Moment{At: "end"}
		if len(f.Failures) > 0 {
			end.At = "oom"
		}
		if word != "" && word != end.At {
			return nil, rewind.Moment{}, fmt.Errorf("a %s has no history: it is known at %v only", f.Format, end)
		}
		return f.Usage, end, nil
	}
	devices := append([]*snapshot.Dump{f.Dump}, f.Dump.Others...)
	leads := 0
	if word == "" || word == "oom" {
		leads = cli.Leading(devices)
	}
	s, moment, err := rewind.To(devices[leads], word)
	if err != nil {
		return nil, moment, err
	}
	if s == devices[leads].Snapshot {
		return f.Usage, moment, nil
	}
	u := &export.Usage{Name: f.Usage.Name, Device: f.Usage.Device, Time: s.Time, Origin: f.Usage.Origin}
	for i, d := range devices {
		state := s
		if i != leads {
			if state, err = atTime(d, s.Time); err != nil {
				return nil, moment, err
			}
		}
		its := export.FromSnapshot(state)
		named(its.Rows, state, f.Usage)
		u.Rows, u.Host = append(u.Rows, its.Rows...), append(u.Host, its.Host...)
	}
	return u, moment, nil
}

// atTime returns the state of another device at a time.
func atTime(d *snapshot.Dump, at time.Time) (*snapshot.Snapshot, error) {
	if at.IsZero() {
		return nil, errors.New("its events have no times, by which its devices could be shown at one moment: want --at end")
	}
	for e := range d.Events() {
		if e.Time.After(at) {
			return rewind.At(d, e.Seq)
		}
	}
	return d.Snapshot, nil
}

// named gives rows the names that the file's own have, where another program than a tracker wrote it.
func named(rows []export.Row, s *snapshot.Snapshot, as *export.Usage) {
	device := s.Device + ":" + strconv.Itoa(s.Ordinal)
	if !slices.ContainsFunc(as.Rows, func(r export.Row) bool { return r.Device == device }) {
		return
	}
	for i := range rows {
		rows[i].Device = device
		if rows[i].Kind == mem.Unspecified.String() {
			rows[i].Kind = ""
		}
	}
}

// namesOfMoments tells of many moments how many are which: "the error (1), the end (3)".
func namesOfMoments(all []rewind.Moment) string {
	counts := make(map[string]int)
	var order []string
	for _, m := range all {
		if counts[m.String()]++; counts[m.String()] == 1 {
			order = append(order, m.String())
		}
	}
	if len(order) == 1 {
		return order[0]
	}
	for i, name := range order {
		order[i] = fmt.Sprintf("%s (%d)", name, counts[name])
	}
	return strings.Join(order, ", ")
}

func momentsOf(all []explained) string {
	var moments []rewind.Moment
	for _, e := range all {
		moments = append(moments, e.Moment)
	}
	return namesOfMoments(moments)
}

package inspect

import (
	"errors"
	"fmt"
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

// states holds the states of all devices of a dump at one moment. The leading device is the one
// whose request failed, or else the one with most memory; the moment is found in its history, and
// the others are shown at the same time.
type states struct {
	of    []*snapshot.Snapshot // empty for a file that is not a dump
	leads int
	ended bool // all states are those at the end
	rewind.Moment
}

func statesAt(f *files.File, word string) (at states, err error) {
	if f.Dump == nil {
		at.At = "end"
		if len(f.Failures) > 0 {
			at.At = "oom"
		}
		if word != "" && word != at.At {
			return states{}, fmt.Errorf("a %s has no history: it is known at %v only", f.Format, at.Moment)
		}
		at.ended = true
		return at, nil
	}
	devices := append([]*snapshot.Dump{f.Dump}, f.Dump.Others...)
	if word == "" || word == "oom" {
		at.leads = cli.Leading(devices)
	}
	s, moment, err := rewind.To(devices[at.leads], word)
	if err != nil {
		return states{}, err
	}
	at.Moment, at.ended = moment, s == devices[at.leads].Snapshot
	for i, d := range devices {
		state := d.Snapshot
		if i == at.leads {
			state = s
		} else if !at.ended {
			if state, err = atTime(d, s.Time); err != nil {
				return states{}, err
			}
		}
		at.of = append(at.of, state)
	}
	return at, nil
}

// usage returns the memory that the file's processes hold at the moment.
func (at states) usage(f *files.File) *export.Usage {
	if at.ended {
		return f.Usage
	}
	u := at.empty(f)
	for _, s := range at.of {
		at.add(u, export.FromSnapshot(s), s, f)
	}
	return u
}

// buffers returns the live buffers that are older than an age, by what only single buffers know.
func (at states) buffers(f *files.File, age time.Duration) (*export.Usage, error) {
	if len(at.of) == 0 {
		return nil, fmt.Errorf("a %s has sums by call stack only, no single buffers with their labels and ages", f.Format)
	}
	u := at.empty(f)
	for _, s := range at.of {
		its, err := export.FromBuffers(s, age)
		if err != nil {
			return nil, err
		}
		at.add(u, its, s, f)
	}
	return u, nil
}

func (at states) empty(f *files.File) *export.Usage {
	return &export.Usage{Name: f.Usage.Name, Device: f.Usage.Device, Time: at.of[at.leads].Time, Origin: f.Usage.Origin}
}

func (at states) add(u, its *export.Usage, s *snapshot.Snapshot, f *files.File) {
	named(its.Rows, s, f.Usage)
	u.Rows, u.Host = append(u.Rows, its.Rows...), append(u.Host, its.Host...)
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

// named gives rows the names that the file's own rows have, if another program than a tracker wrote
// it.
func named(rows []export.Row, s *snapshot.Snapshot, as *export.Usage) {
	device := s.Device + ":" + strconv.Itoa(s.Ordinal)
	for r := range as.Each(false) {
		if r.Device != device {
			continue
		}
		for i := range rows {
			rows[i].Device = device
			if rows[i].Kind == mem.Kind("").String() {
				rows[i].Kind = ""
			}
		}
		return
	}
}

// momentsOf says how many of the moments are of each kind: "the error (1), the end (3)".
func momentsOf[T any](all []T, of func(T) rewind.Moment) string {
	counts := make(map[string]int)
	var order []string
	for _, one := range all {
		name := of(one).String()
		if counts[name]++; counts[name] == 1 {
			order = append(order, name)
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

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// explained is the account of one process of many. Its terms add up to Reserved: see
// snapshot.Explanation.
type explained struct {
	File       string          `json:"file"`
	Origin     snapshot.Origin `json:"origin"`
	Device     string          `json:"device"`
	Ordinal    int             `json:"ordinal"`
	Reserved   alloc.Bytes     `json:"reserved_bytes"`
	Requested  alloc.Bytes     `json:"requested_bytes"`
	Rounding   alloc.Bytes     `json:"rounding_bytes"`
	Unsplit    alloc.Bytes     `json:"unsplit_bytes"`
	Pending    alloc.Bytes     `json:"pending_bytes"`
	Releasable alloc.Bytes     `json:"releasable_bytes"`
	Stuck      alloc.Bytes     `json:"stuck_bytes"`

	time time.Time
}

// explainRanks explains many files: in a table, and the one with most stuck memory in full.
func (a *app) explainRanks(word string, paths []string, device int, atPeak, asJSON bool) error {
	all, passed, err := a.explainAll(paths, device, atPeak)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("%s: none of the %d files is a dump, or a memory snapshot of PyTorch", word, passed)
	}
	if asJSON {
		return json.NewEncoder(a.stdout).Encode(struct {
			Schema    string      `json:"schema"`
			Processes []explained `json:"processes"`
		}{"gpumemtrack.explain.ranks/1", all})
	}
	fmt.Fprintf(a.stdout, "reserved memory of %s", count(len(all), "dump"))
	if passed > 0 {
		fmt.Fprintf(a.stdout, "; %s skipped", count(passed, "other file"))
	}
	fmt.Fprintln(a.stdout)
	a.explainTable(all)
	most := all[0]
	r, err := a.openRecord(most.File, device)
	if err != nil {
		return err
	}
	x, err := replay.Explain(r, atPeak)
	if err != nil {
		return fmt.Errorf("%s: %w", most.File, err)
	}
	_, err = fmt.Fprintf(a.stdout, "\nmost is stuck in %s:\n%v", most.name(), x)
	return err
}

// explainAll explains files, most stuck first. It keeps the sums only, however large
// the files are. What is no dump counts as passed over.
func (a *app) explainAll(paths []string, device int, atPeak bool) (all []explained, passed int, err error) {
	found, errs := make([]explained, len(paths)), make([]error, len(paths))
	atATime(len(paths), func(i int) { found[i], errs[i] = a.explainOne(paths[i], device, atPeak) })
	for i, err := range errs {
		switch {
		case err == nil:
			all = append(all, found[i])
		case errors.Is(err, files.ErrFormat), errors.Is(err, errNoRecord):
			passed++
		default:
			return nil, 0, err
		}
	}
	all = latestExplained(all)
	slices.SortStableFunc(all, func(x, y explained) int { return cmp.Compare(y.Stuck, x.Stuck) })
	return all, passed, nil
}

func (a *app) explainOne(path string, device int, atPeak bool) (explained, error) {
	r, err := a.openRecord(path, device)
	if err != nil {
		return explained{}, err
	}
	s := r.Snapshot
	if atPeak {
		if s, err = r.AtPeak(); err != nil {
			return explained{}, fmt.Errorf("%s: the state at the peak: %w", path, err)
		}
	}
	x := s.Explain()
	return explained{
		File: path, Origin: r.Snapshot.Origin, Device: x.Device, Ordinal: x.Ordinal, time: r.Snapshot.Time,
		Reserved: x.Reserved, Requested: x.Requested, Rounding: x.Rounding, Unsplit: x.Unsplit,
		Pending: x.Pending, Releasable: x.Releasable, Stuck: x.Stuck,
	}, nil
}

// latestExplained keeps the latest of each process and device, in the place of the first. A process of
// no number is by itself.
func latestExplained(all []explained) []explained {
	type process struct {
		host, program, device string
		pid, ordinal          int
	}
	at := make(map[process]int)
	var kept []explained
	for _, e := range all {
		p := process{e.Origin.Host, e.Origin.Program, e.Device, e.Origin.PID, e.Ordinal}
		i, known := at[p]
		switch {
		case p.pid == 0 || !known:
			at[p] = len(kept)
			kept = append(kept, e)
		case !e.time.Before(kept[i].time):
			kept[i] = e
		}
	}
	return kept
}

// name is by rank where there is one.
func (e explained) name() string { return cmp.Or(rankName(e.Origin), e.File) }

func (e explained) row(name string) table.Row {
	return table.Row{name, e.Reserved, e.Requested, e.Rounding + e.Unsplit, e.Pending, e.Releasable, e.Stuck}
}

// explainTable prints the first processes, the sum of the others and that of all.
func (a *app) explainTable(all []explained) {
	const most = 20
	t := memoryTable("Rounding", "Process", "Reserved", "Requested", "Rounding", "Pending", "Releasable", "Stuck")
	var others, sum explained
	for i, e := range all {
		sum.add(e)
		if i < most {
			t.AppendRow(e.row(e.name()))
		} else {
			others.add(e)
		}
	}
	if len(all) > most {
		t.AppendRow(others.row(fmt.Sprintf("%d more", len(all)-most)))
	}
	t.AppendFooter(sum.row("all"))
	fmt.Fprint(a.stdout, t.fitted(widthOf(a.stdout)))
}

func (e *explained) add(other explained) {
	e.Reserved += other.Reserved
	e.Requested += other.Requested
	e.Rounding += other.Rounding
	e.Unsplit += other.Unsplit
	e.Pending += other.Pending
	e.Releasable += other.Releasable
	e.Stuck += other.Stuck
}

package inspect

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// pair pairs the processes of two runs, for export.Compare. Processes are paired by rank, if all
// have one, and by device if a rank has several. If ranks do not tell the processes of a run apart,
// they are paired by their order. A process without a partner is paired with nil.
func pair(before, after []*export.Usage) (pairedBefore, pairedAfter []*export.Usage, byPlace bool) {
	for _, withDevice := range []bool{false, true} {
		old, now := byRank(before, withDevice), byRank(after, withDevice)
		if old == nil || now == nil {
			continue
		}
		for _, u := range before {
			pairedBefore = append(pairedBefore, u)
			pairedAfter = append(pairedAfter, now[placeOf(u, withDevice)])
		}
		for _, u := range after {
			if old[placeOf(u, withDevice)] == nil {
				pairedBefore = append(pairedBefore, nil)
				pairedAfter = append(pairedAfter, u)
			}
		}
		return pairedBefore, pairedAfter, false
	}
	n := max(len(before), len(after))
	return padded(before, n), padded(after, n), true
}

// place identifies a process in its run.
type place struct {
	rank   int
	device string
}

func placeOf(u *export.Usage, withDevice bool) place {
	p := place{rank: *u.Origin.Rank}
	if withDevice {
		p.device = deviceOf(u)
	}
	return p
}

// byRank returns the processes by place, or nil if two have the same place.
func byRank(run []*export.Usage, withDevice bool) map[place]*export.Usage {
	of := make(map[place]*export.Usage, len(run))
	for _, u := range run {
		if u.Origin.Rank == nil || of[placeOf(u, withDevice)] != nil {
			return nil
		}
		of[placeOf(u, withDevice)] = u
	}
	return of
}

func padded(run []*export.Usage, n int) []*export.Usage {
	return append(append(make([]*export.Usage, 0, n), run...), make([]*export.Usage, n-len(run))...)
}

// process is what tells the snapshots of one process and device from others.
type process struct {
	host, program, device string
	pid, rank, ordinal    int
}

// latestOf keeps the latest of several snapshots of one process and device, in the place of the
// first, and returns how many it left out. Those without a process number are all kept.
func latestOf[T any](all []T, of func(T) (process, time.Time)) (latest []T, older int) {
	at := make(map[process]int)
	for _, one := range all {
		p, now := of(one)
		i, known := at[p]
		if p.pid == 0 || !known {
			at[p] = len(latest)
			latest = append(latest, one)
			continue
		}
		older++
		if _, before := of(latest[i]); !now.Before(before) {
			latest[i] = one
		}
	}
	return latest, older
}

func processOf(u *export.Usage) (process, time.Time) {
	p := process{host: u.Origin.Host, program: u.Origin.Program, device: deviceOf(u), pid: u.Origin.PID, rank: -1}
	if u.Origin.Rank != nil {
		p.rank = *u.Origin.Rank
	}
	return p, u.Time
}

// deviceOf returns the device's name, if there is one.
func deviceOf(u *export.Usage) string {
	if u.Device == "" && len(u.Rows) > 0 {
		return u.Rows[0].Device
	}
	return u.Device
}

// worst returns the process that grew most and by how much; -1 if there is none.
func worst(l export.Line) (rank int, change mem.Tally) {
	rank = -1
	for i, t := range l.Ranks {
		if rank < 0 || t.Bytes > change.Bytes {
			rank, change = i, t
		}
	}
	return rank, change
}

// spread returns by how much the process that grew most grew more than the one that grew least.
func spread(l export.Line) alloc.Bytes {
	if len(l.Ranks) == 0 {
		return 0
	}
	least, most := l.Ranks[0].Bytes, l.Ranks[0].Bytes
	for _, t := range l.Ranks[1:] {
		least, most = min(least, t.Bytes), max(most, t.Bytes)
	}
	return most - least
}

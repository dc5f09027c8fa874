package export

// Pair puts the processes of two runs side by side, for Compare: those of one
// rank, if all have ranks; of several devices of one rank, those of one device.
// Where that does not distinguish the processes of a run, they pair by their places. A
// process without a partner is paired with nil.
func Pair(before, after []*Usage) (pairedBefore, pairedAfter []*Usage) {
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
		return pairedBefore, pairedAfter
	}
	n := max(len(before), len(after))
	return padded(before, n), padded(after, n)
}

// place is what a process is in its run.
type place struct {
	rank   int
	device string
}

func placeOf(u *Usage, withDevice bool) place {
	p := place{rank: *u.Origin.Rank}
	if withDevice {
		p.device = u.device()
	}
	return p
}

// byRank returns nil unless each has a place of its own.
func byRank(run []*Usage, withDevice bool) map[place]*Usage {
	of := make(map[place]*Usage, len(run))
	for _, u := range run {
		if u.Origin.Rank == nil || of[placeOf(u, withDevice)] != nil {
			return nil
		}
		of[placeOf(u, withDevice)] = u
	}
	return of
}

func padded(run []*Usage, n int) []*Usage {
	return append(append(make([]*Usage, 0, n), run...), make([]*Usage, n-len(run))...)
}

// Latest returns of several snapshots of one process and device the latest, in the
// place of the first, and how many others there were. A process is known by its number and
// host.
func Latest(run []*Usage) (latest []*Usage, older int) {
	type process struct {
		host, program, device string
		pid, rank             int
	}
	at := make(map[process]int)
	for _, u := range run {
		p := process{host: u.Origin.Host, program: u.Origin.Program, device: u.device(), pid: u.Origin.PID, rank: -1}
		if u.Origin.Rank != nil {
			p.rank = *u.Origin.Rank
		}
		i, known := at[p]
		switch {
		case p.pid == 0 || !known:
			at[p] = len(latest)
			latest = append(latest, u)
		case u.Time.Before(latest[i].Time):
			older++
		default:
			latest[i] = u
			older++
		}
	}
	return latest, older
}

// device returns the device's name, if there is one.
func (u *Usage) device() string {
	if u.Device == "" && len(u.Rows) > 0 {
		return u.Rows[0].Device
	}
	return u.Device
}

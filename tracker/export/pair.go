package export

// Pair puts the processes of two runs side by side, for Compare: those of one
// rank, where all tell their ranks and no two of a run the same; otherwise those
// in the same place. A process without a partner stands beside nil.
func Pair(before, after []*Usage) (pairedBefore, pairedAfter []*Usage) {
	old, now := byRank(before), byRank(after)
	if old == nil || now == nil {
		n := max(len(before), len(after))
		return padded(before, n), padded(after, n)
	}
	for _, u := range before {
		pairedBefore = append(pairedBefore, u)
		pairedAfter = append(pairedAfter, now[*u.Origin.Rank])
	}
	for _, u := range after {
		if old[*u.Origin.Rank] == nil {
			pairedBefore = append(pairedBefore, nil)
			pairedAfter = append(pairedAfter, u)
		}
	}
	return pairedBefore, pairedAfter
}

// byRank returns nil unless each has a rank of its own.
func byRank(run []*Usage) map[int]*Usage {
	of := make(map[int]*Usage, len(run))
	for _, u := range run {
		if u.Origin.Rank == nil || of[*u.Origin.Rank] != nil {
			return nil
		}
		of[*u.Origin.Rank] = u
	}
	return of
}

func padded(run []*Usage, n int) []*Usage {
	return append(append(make([]*Usage, 0, n), run...), make([]*Usage, n-len(run))...)
}

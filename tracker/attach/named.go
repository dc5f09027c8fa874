package attach

import "slices"

// named is a part of a program's code that has a name.
type named struct {
	start, end uint64
	name       string
}

func sortNamed(all []named) {
	slices.SortStableFunc(all, func(a, b named) int {
		switch {
		case a.start < b.start:
			return -1
		case a.start > b.start:
			return 1
		}
		return 0
	})
}

// findNamed returns the last that begins at or before the address, if it reaches there.
func findNamed(all []named, address uint64) (named, bool) {
	i, _ := slices.BinarySearchFunc(all, address, func(n named, a uint64) int {
		if n.start <= a {
			return -1
		}
		return 1
	})
	if i == 0 || address >= all[i-1].end {
		return named{}, false
	}
	return all[i-1], true
}

package tracker

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func TestAdviceFollowsFromTheNumbers(t *testing.T) {
	type numbers struct {
		requested, free, total, reserved, largest, inactive, untracked, elsewhere, others, untrackedAtStart alloc.Bytes
	}
	for _, test := range []struct {
		name string
		numbers
		want cause
		text string
	}{
		{"more than the device has", numbers{requested: 200, free: 90, total: 100, others: -1}, tooLarge, "larger than the device: no device of 100 B can hold it"},
		{"all of it is live", numbers{requested: 20, free: 10, total: 100, reserved: 80, others: -1}, trulyFull, "truly full: the program's own buffers take the memory"},
		{"the driver has it and refuses", numbers{requested: 20, free: 50, total: 100, others: -1}, noShortage, "no shortage: the driver has 50 B free and refused"},
		{"the driver has hardly more", numbers{requested: 20, free: 20, total: 100, others: -1}, fragmented, "fragmented: the driver has 20 B free and refused"},
		{"the cache has it in pieces", numbers{requested: 20, free: 5, total: 100, largest: 8, inactive: 15, others: -1}, fragmented, "fragmented: 15 B are inactive, but in pieces of 8 B at most"},
		{"pieces that are too few", numbers{requested: 20, free: 4, total: 100, largest: 8, inactive: 15, others: -1}, trulyFull, "truly full"},
		{"the other pool has it", numbers{requested: 20, free: 5, total: 100, largest: 30, inactive: 30, others: -1}, cachedElsewhere, "inactive elsewhere: a block of 30 B lies in the pool of the other sizes"},
		{"another tracker has it", numbers{requested: 20, free: 5, total: 100, elsewhere: 15, others: -1}, cachedElsewhere, "inactive elsewhere: other trackers of this process have 15 B inactive"},
		{"others have taken it since", numbers{requested: 20, free: 5, total: 100, untracked: 25, untrackedAtStart: 10, others: -1}, otherProcess, "other process: 25 B of the device"},
		{"others had it all the time", numbers{requested: 20, free: 5, total: 100, untracked: 60, untrackedAtStart: 60, others: -1}, otherProcess, "other process: 60 B of the device"},
		{"the context is not others", numbers{requested: 20, free: 5, total: 100, untracked: 30, untrackedAtStart: 30, others: -1}, trulyFull, "truly full"},
		{"NVML says that others have it", numbers{requested: 20, free: 5, total: 100, untracked: 30, untrackedAtStart: 30, others: 15}, otherProcess, "other process: 15 B of the device"},
		{"NVML says that others have not", numbers{requested: 20, free: 5, total: 100, untracked: 60, untrackedAtStart: 10, others: 3}, trulyFull, "truly full"},
		{"all that the program holds is too little", numbers{requested: 90, free: 50, total: 100, reserved: 10, untracked: 40, untrackedAtStart: 40, others: -1}, trulyFull, "truly full: with all buffers of this program freed there would be 60 B"},
		{"nothing is known", numbers{requested: 20, free: -1, total: -1, reserved: -1, largest: -1, inactive: -1, untracked: -1, untrackedAtStart: -1, others: -1}, trulyFull, "truly full"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := test.numbers
			e := &snapshot.OOM{
				Requested: n.requested, Free: n.free, Total: n.total, Reserved: n.reserved, LargestInactive: n.largest,
				Inactive: n.inactive, Untracked: n.untracked, Elsewhere: n.elsewhere, Others: n.others,
			}
			why := causeOf(e, n.untrackedAtStart)
			assert.Equal(t, test.want, why)
			assert.Contains(t, why.advice(e), test.text)
		})
	}
}

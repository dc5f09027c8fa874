package replay

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// agreement says how far a replay with the recorded settings does what was recorded: the same
// driver calls for the same requests, and the same addresses. Replays with other settings can be
// trusted as far as this one agrees.
type agreement struct {
	Calls             int64 `json:"driver_calls"` // that the replay makes as recorded
	RecordedCalls     int64 `json:"recorded_driver_calls"`
	OtherCalls        int64 `json:"other_driver_calls"` // calls of the replay that the recording does not have
	Addresses         int64 `json:"addresses"`
	RecordedAddresses int64 `json:"recorded_addresses"`

	PeakReserved         alloc.Bytes `json:"peak_reserved_bytes"`
	RecordedPeakReserved alloc.Bytes `json:"recorded_peak_reserved_bytes"`
}

// calls counts driver calls by how much each changes the reserved memory.
type calls map[alloc.Bytes]int64

// comparison holds what a machine does against what was recorded.
type comparison struct {
	agreement
	recorded, made calls // since the latest request
}

func newComparison() *comparison { return &comparison{recorded: make(calls), made: make(calls)} }

// served enters that a request was served, at the recorded address or elsewhere.
func (c *comparison) served(same bool) {
	c.RecordedAddresses++
	if same {
		c.Addresses++
	}
	c.compare()
}

// compare compares the driver calls since the latest request. Their order does not matter.
func (c *comparison) compare() {
	for change, n := range c.recorded {
		c.RecordedCalls += n
		c.Calls += min(n, c.made[change])
	}
	for change, n := range c.made {
		c.OtherCalls += max(0, n-c.recorded[change])
	}
	clear(c.recorded)
	clear(c.made)
}

// whole reports whether the replay did all that was recorded, and no more.
func (a *agreement) whole() bool {
	return a.Calls == a.RecordedCalls && a.OtherCalls == 0 && a.Addresses == a.RecordedAddresses
}

// String says how far the replay agrees and, if it does not agree everywhere, how far other replays
// can be trusted.
func (a *agreement) String() string {
	text := fmt.Sprintf("with the recorded settings, a replay makes %d of %d driver calls", a.Calls, a.RecordedCalls)
	if a.OtherCalls > 0 {
		text += fmt.Sprintf(" (and %d others)", a.OtherCalls)
	}
	text += fmt.Sprintf(" and has %d of %d addresses as recorded", a.Addresses, a.RecordedAddresses)
	off := a.PeakReserved - a.RecordedPeakReserved
	switch {
	case a.whole():
		return text
	case off == 0:
		return text + "; its peak of reserved memory is the recorded one"
	case off < 0:
		return text + fmt.Sprintf("; it reserves %v less than recorded: smaller differences between settings mean nothing", -off)
	}
	return text + fmt.Sprintf("; it reserves %v more than recorded: smaller differences between settings mean nothing", off)
}

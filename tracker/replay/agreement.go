package replay

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// agreement is how far a replay with the recorded settings does what was recorded: the same calls to the driver for
// the same requests, and the same addresses. What replays say of other settings is worth as much as that.
type agreement struct {
	Calls             int64 `json:"driver_calls"` // that the replay makes as recorded
	RecordedCalls     int64 `json:"recorded_driver_calls"`
	OtherCalls        int64 `json:"other_driver_calls"` // that it makes and the recording does not have
	Addresses         int64 `json:"addresses"`
	RecordedAddresses int64 `json:"recorded_addresses"`

	PeakReserved         alloc.Bytes `json:"peak_reserved_bytes"`
	RecordedPeakReserved alloc.Bytes `json:"recorded_peak_reserved_bytes"`
}

// calls count calls to the driver by the change that each makes to what is reserved.
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

// compare compares the calls since the latest request, which may be in another order.
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

// String says how far the replay agrees and, if that is not everywhere, what other replays are worth.
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

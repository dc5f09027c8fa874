package ledger

import (
	"fmt"
	"slices"
	"time"
)

// Accuracy is what is known of how accurate the ledgers are. It is guarded by the caller's lock.
type Accuracy struct {
	Start        time.Time // the time that the times of warnings count from
	UnknownFrees uint64    // frees of addresses that are in no ledger
	LostEvents   uint64    // that the ring buffer had no room for
	LostSince    time.Time // time of the first: the ledgers are inaccurate from then on
	warnings     []accuracyWarning
}

// accuracyWarning is a reason why the ledgers may be inaccurate from a moment on.
type accuracyWarning struct {
	since  time.Time
	reason string
}

const maxWarnings = 16

// Warn records a reason why the ledgers may be inaccurate, once.
func (a *Accuracy) Warn(now time.Duration, reason string) {
	if len(a.warnings) < maxWarnings && !slices.ContainsFunc(a.warnings, func(d accuracyWarning) bool { return d.reason == reason }) {
		a.warnings = append(a.warnings, accuracyWarning{a.Start.Add(now), reason})
	}
}

// Texts returns the warnings as sentences with their times.
func (a *Accuracy) Texts() (all []string) {
	const clock = "15:04:05.000"
	if a.LostEvents > 0 {
		all = append(all, fmt.Sprintf("from %s on the ledger is not exact: %d events were lost: give a larger ring buffer (--ring-buffer, Config.RingBufferBytes)", a.LostSince.Format(clock), a.LostEvents))
	}
	for _, d := range a.warnings {
		all = append(all, fmt.Sprintf("from %s on the ledger may not be exact: %s", d.since.Format(clock), d.reason))
	}
	if a.UnknownFrees > 0 {
		all = append(all, fmt.Sprintf("%d frees were of memory that is not in the ledger: from before the process was watched, or of a function that is not watched", a.UnknownFrees))
	}
	return all
}

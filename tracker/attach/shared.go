package attach

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// shared is what a watcher, its processes and its sources share.
type shared struct {
	start  time.Time
	clock  uint64 // the clock of the events, at start
	driver Driver

	mu      sync.Mutex
	unknown uint64 // frees of addresses that nobody allocated here
	doubts  []doubt
	lost    loss
	late    map[uint32]*earlier // the processes that ran before they were watched
	closed  bool
}

// Loss says what the ledgers lack.
type loss struct {
	events uint64    // events for which the ring had no room
	since  time.Time // when the first event was lost; the ledgers are not exact from then on
}

// doubt is why the ledgers may not be exact from a moment on.
type doubt struct {
	since  time.Time
	reason string
}

const maxDoubts = 16

// doubt notes, once, why the ledgers may not be exact; the caller holds mu.
func (s *shared) doubt(now time.Duration, reason string) {
	if len(s.doubts) < maxDoubts && !slices.ContainsFunc(s.doubts, func(d doubt) bool { return d.reason == reason }) {
		s.doubts = append(s.doubts, doubt{s.start.Add(now), reason})
	}
}

// sentences are the doubts, and from when on they are.
func (s *shared) sentences() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const clock = "15:04:05.000"
	if s.lost.events > 0 {
		all = append(all, fmt.Sprintf("from %s on the ledger is not exact: %d events were lost: give a larger ring (--ring, Config.RingBytes)", s.lost.since.Format(clock), s.lost.events))
	}
	for _, d := range s.doubts {
		all = append(all, fmt.Sprintf("from %s on the ledger may not be exact: %s", d.since.Format(clock), d.reason))
	}
	if s.unknown > 0 {
		all = append(all, fmt.Sprintf("%d frees were of memory that is not in the ledger: from before the process was watched, or of a function that is not watched", s.unknown))
	}
	return all
}

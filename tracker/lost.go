package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// lose is called with a copy of a Buffer that nobody can reach any more. Most
// were freed.
func (b *Buffer) lose() {
	t := b.tracker
	now := t.now()
	t.mu.Lock()
	r := b.live()
	if r == nil || t.ledger.Closed && t.lost != FreeLost {
		t.mu.Unlock()
		return
	}
	t.ledger.Records.Touch(b.record)
	r.Lost = true
	t.everLost++
	first := t.everLost == 1
	if !t.ledger.Closed {
		t.note(r, t.history.Moment(now), snapshot.Lost)
	}
	t.mu.Unlock()
	if first {
		t.report.Log.Warn("gpumemtrack: a buffer was never freed and nothing refers to it any more; see Leaks",
			"buffer", b.String(), "site", t.stacks.Site(b.stack).String())
	}
	if t.lost != FreeLost {
		return
	}
	if err := b.Free(); err != nil {
		t.report.Log.Warn("gpumemtrack: a lost buffer could not be freed", "err", err)
	}
}

package replay

// What a result and an explanation print, for tests to look at.

// Layout returns where the replay placed the buffers that were live before the first event.
func (r Result) Layout() string { return r.start.Layout }

// Replays returns how many replays the search took.
func (r Result) Replays() int { return r.replays }

// Agreement returns how far a replay with the recorded settings agrees.
func (r Result) Agreement() *agreement { return r.agreement }

// Whole reports whether it agrees everywhere.
func (a *agreement) Whole() bool { return a.complete() }

// Gap returns what the history lacks, nil if it is complete.
func (r Result) Gap() *gap { return r.gap }

// Settings returns what other settings would have saved, most first.
func (x *Explanation) Settings() []saving { return x.settings }

// NoReplay returns why nothing was replayed.
func (x *Explanation) NoReplay() string { return x.noReplay }

// OOM returns the request that did not fit; nil if all did.
func (r Result) OOM() *failure { return r.oom }

// Saving is what a change would have saved.
type Saving = saving

// Earlier returns what allocating the buffers of a line first would have saved.
func (x *Explanation) Earlier() []saving { return x.earlier }

package tracker

// usedAfterClose tells the logger, once, that the program goes on with a tracker
// that it has closed: what was called then finds nothing. The caller holds no lock.
func (t *MemTracker) usedAfterClose(what string) {
	if t.toldClosed.CompareAndSwap(false, true) {
		t.report.Log.Warn("gpumemtrack: used after Close: a closed tracker knows nothing", "called", what)
	}
}

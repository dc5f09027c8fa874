package tracker

// giveBack gives back what a closed tracker's cache still holds, and closes a
// device of its own once no buffer is live. A cache that the caller made is the
// caller's to empty.
func (t *MemTracker) giveBack() (err error) {
	if t.owned {
		_, err = t.cache.Trim()
	}
	t.mu.Lock()
	last := t.ledger.Buffers == 0
	t.mu.Unlock()
	if err == nil && last {
		err = t.opened.close()
	}
	return err
}

// freedAfterClose gives the memory of a free after Close back to the driver, once the work of other streams
// on it is done. The free itself has succeeded: an error of the driver is only logged, and the next free
// tries again.
func (t *MemTracker) freedAfterClose() {
	if t.owned {
		if stats := t.cache.Stats(); stats.Releasable == 0 && stats.Pending.Count.Current == 0 {
			return
		}
	}
	if err := t.giveBack(); err != nil {
		t.report.Log.Warn("gpumemtrack: memory freed after Close could not be given back to the driver", "err", err)
	}
}

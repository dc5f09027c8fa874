package callstack

// Keys returns the number of walks that the table knows the stack of.
func (t *Table) Keys() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys.n
}

package callstack

// Keys returns the number of walks that the table knows the stack of.
func (t *Table) Keys() int { return int(t.keys.n.Load()) }

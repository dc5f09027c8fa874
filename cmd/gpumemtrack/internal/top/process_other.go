//go:build !linux

package top

// commandOf returns what a process was started as; "" if it is not known here.
func commandOf(int) string { return "" }

func (t *processTable) about(int) processFacts { return unknownProcess }

//go:build !linux

package top

// commandOf returns "", as the command line of a process is unknown here.
func commandOf(int) string { return "" }

func (t *processTable) facts(int) processFacts { return unknownProcess }

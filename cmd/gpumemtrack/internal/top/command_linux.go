package top

import (
	"bytes"
	"fmt"
	"os"
)

// commandOf returns what a process was started as; "" if it is not known here.
func commandOf(pid int) string {
	words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if words = bytes.TrimRight(words, "\x00"); err == nil && len(words) > 0 {
		return string(bytes.ReplaceAll(words, []byte{0}, []byte{' '}))
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return "[" + string(bytes.TrimSpace(name)) + "]"
}

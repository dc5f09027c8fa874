// Package goroutines is for tests: it finds the goroutines that a test leaves behind. go.uber.org/goleak does the same,
// but waits 0.4 seconds for them and no longer, which is not enough on a busy machine.
package goroutines

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// patience is the longest pause between two looks at goroutines that must end. It
// is no measure of time: a test waits so long only to fail.
const patience = 10 * time.Second

// Check makes a test fail if goroutines that it began still run when it ends.
// Goroutines of other tests count too, so do not run such a test in parallel.
func Check(t testing.TB) {
	t.Helper()
	before := stacks()
	t.Cleanup(func() {
		if left := wait(before); left != "" {
			t.Errorf("these goroutines still run:\n\n%s", left)
		}
	})
}

// CheckMain runs a package's tests, and ends the process with an error if
// goroutines still run after them.
func CheckMain(m *testing.M) {
	before := stacks()
	code := m.Run()
	if left := wait(before); left != "" && code == 0 {
		fmt.Fprintf(os.Stderr, "these goroutines still run after the tests:\n\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// wait returns the stacks of the goroutines that began since and do not end.
func wait(before map[string]string) string {
	for pause := time.Millisecond; ; pause *= 2 {
		var left []string
		for id, stack := range stacks() {
			if _, ok := before[id]; !ok {
				left = append(left, stack)
			}
		}
		if len(left) == 0 || pause > patience {
			return strings.Join(left, "\n\n")
		}
		time.Sleep(pause)
	}
}

// stacks returns each goroutine's stack by its name, "goroutine 7", except the one
// that package os/signal starts and never ends.
func stacks() map[string]string {
	text := make([]byte, 1<<16)
	for {
		n := runtime.Stack(text, true)
		if n < len(text) {
			text = text[:n]
			break
		}
		text = make([]byte, 2*len(text))
	}
	found := make(map[string]string)
	for stack := range bytes.SplitSeq(text, []byte("\n\n")) {
		if name, _, ok := strings.Cut(string(stack), " ["); ok && !bytes.Contains(stack, []byte("os/signal.loop(")) {
			found[name] = string(stack)
		}
	}
	return found
}

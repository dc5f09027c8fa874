package attach

import (
	"fmt"
	"os"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/ledger"
)

// discoveries is what a watcher does with what its discovery finds out.
type discoveries struct{ w *Watcher }

func (d discoveries) Warn(reason string) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.accuracy.Warn(time.Since(d.w.start), reason)
}

func (d discoveries) LoadedDriver() { d.w.used(Loaded) }

func (d discoveries) ReturnsNothing(function int) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.returnsNothing[function] = true
}

// LoadedEarly asks the driver what the process uses. Only libcuda makes contexts.
func (d discoveries) LoadedEarly(pid int, path string, isDriver bool) {
	w := d.w
	before := ledger.ReadPrior(w.driver, pid)
	before.UnseenCalls = isDriver
	_, gone := os.Stat(fmt.Sprintf("/proc/%d", pid))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.prior[uint32(pid)] != nil {
		return
	}
	if gone == nil { // otherwise another process may get its number
		w.prior[uint32(pid)] = before
	}
	w.accuracy.Warn(time.Since(w.start), fmt.Sprintf("process %d had loaded %s before it was found: name its path", pid, path))
}

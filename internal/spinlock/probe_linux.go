//go:build lockprobe

package spinlock

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// probe remembers the longest Hold. The lock guards it.
//
// A goroutine that holds the lock stays on its thread, on which no other goroutine runs
// then. So the thread's processor time is the goroutine's own. It includes the goroutine's share of the Go collector's work,
// and leaves out the time that it waits for a processor.
type probe struct {
	since   time.Duration
	longest Hold
}

func (p *probe) locked() {
	runtime.LockOSThread()
	p.since = threadTime()
}

func (p *probe) unlocking() {
	held := threadTime() - p.since
	if held > p.longest.Time {
		calls := make([]uintptr, 8)
		p.longest = Hold{held, calls[:runtime.Callers(3, calls)]}
	}
	runtime.UnlockOSThread()
}

func threadTime() time.Duration {
	const clockThreadCPUTime = 3
	var ts syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockThreadCPUTime, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}

// Longest returns the longest Hold since the last Forget; known is false if the program was not built
// with the tag lockprobe, or not for Linux.
func (m *Mutex) Longest() (h Hold, known bool) {
	m.Lock()
	defer m.Unlock()
	return m.probe.longest, true
}

// Forget forgets the longest Hold.
func (m *Mutex) Forget() {
	m.Lock()
	m.probe.longest = Hold{Time: time.Nanosecond}
	m.probe.since = threadTime()
	m.Unlock()
}

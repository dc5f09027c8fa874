package python

import (
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
)

// Processes are the processes that run Python. Any goroutine may use a Processes.
type Processes struct {
	setLayout   func(pid int, l Layout) error
	clearLayout func(pid int)

	mu    sync.Mutex
	byPID map[int]*Process
}

// NewProcesses returns an empty Processes. It calls setLayout for each process that it finds, with the
// layout of its interpreter, and clearLayout when that is no longer valid.
func NewProcesses(setLayout func(pid int, l Layout) error, clearLayout func(pid int)) *Processes {
	return &Processes{setLayout: setLayout, clearLayout: clearLayout, byPID: make(map[int]*Process)}
}

// AwaitInterpreter polls a process that has just started for its interpreter, for at most two seconds. The
// interpreter is loaded early, and must be known before the first call of the driver.
func (p *Processes) AwaitInterpreter(pid int) {
	const most, longest = 2 * time.Second, 16 * time.Millisecond
	for begin, wait := time.Now(), time.Millisecond; time.Since(begin) < most; wait = min(2*wait, longest) {
		at := time.Now()
		mappings, err := procfs.ReadMaps(pid)
		if err != nil || p.Detect(pid, mappings, at) {
			return
		}
		time.Sleep(wait)
	}
}

// Detect finds a process's interpreter in its mappings at a moment, and reports whether it is known.
func (p *Processes) Detect(pid int, mappings []procfs.Mapping, at time.Time) (found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byPID[pid] != nil {
		return true
	}
	for _, m := range mappings {
		if !strings.Contains(filepath.Base(m.Path), "python") {
			continue
		}
		its, err := open(pid, m)
		if err != nil {
			continue // a module, or an unknown version: the interpreter's own frames stay
		}
		if err := p.setLayout(pid, its.Layout); err != nil {
			its.close()
			continue
		}
		its.found = at
		p.byPID[pid] = its
		return true
	}
	return false
}

// Get returns a process that runs Python; nil if it does not. The result is valid until Forget.
func (p *Processes) Get(pid int) *Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byPID[pid]
}

// Forget removes the interpreter that a process ran until a moment. It keeps one that was found later: the
// event of the moment may be read late.
func (p *Processes) Forget(pid int, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if its := p.byPID[pid]; its != nil && its.found.Before(until) {
		p.clearLayout(pid)
		its.close()
		delete(p.byPID, pid)
	}
}

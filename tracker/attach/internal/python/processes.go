package python

import (
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// Processes are the processes that run Python. Any goroutine may use a Processes.
type Processes struct {
	tell   func(pid int, l Layout) error
	forget func(pid int)

	mu sync.Mutex
	of map[int]*Process
}

// NewProcesses returns a Processes without any process. It calls tell for each process that it
// finds, with the layout of its interpreter, and forget when that is no longer valid.
func NewProcesses(tell func(pid int, l Layout) error, forget func(pid int)) *Processes {
	return &Processes{tell: tell, forget: forget, of: make(map[int]*Process)}
}

// Expect looks for the interpreter of a process that has just begun, for at most two seconds. The
// interpreter is loaded early, and must be known before the first call of the driver.
func (p *Processes) Expect(pid int) {
	const most, longest = 2 * time.Second, 16 * time.Millisecond
	for begin, wait := time.Now(), time.Millisecond; time.Since(begin) < most; wait = min(2*wait, longest) {
		at := time.Now()
		mappings, err := symbols.ReadMaps(pid)
		if err != nil || p.Look(pid, mappings, at) {
			return
		}
		time.Sleep(wait)
	}
}

// Look finds a process's interpreter among what it had loaded at a moment, unless it is known.
func (p *Processes) Look(pid int, mappings []symbols.Mapping, at time.Time) (found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[pid] != nil {
		return true
	}
	for _, m := range mappings {
		if !strings.Contains(filepath.Base(m.Path), "python") {
			continue
		}
		its, err := open(pid, m)
		if err != nil {
			continue // a module, or a version that is not known: the interpreter's own frames stay
		}
		if err := p.tell(pid, its.Layout); err != nil {
			its.close()
			continue
		}
		its.found = at
		p.of[pid] = its
		return true
	}
	return false
}

// Get returns what a process runs; nil if that is not Python. It is valid until Forget.
func (p *Processes) Get(pid int) *Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[pid]
}

// Forget ends the program that a process ran until a moment. One that runs since then may have been found already: the
// moment may be long ago.
func (p *Processes) Forget(pid int, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if its := p.of[pid]; its != nil && its.found.Before(until) {
		p.forget(pid)
		its.close()
		delete(p.of, pid)
	}
}

package userfile

import (
	"os"
	"sync"
)

// drafts are the files that Write has begun in this process and not completed.
var drafts draftSet

type draftSet struct {
	mu    sync.Mutex
	names map[string]bool
}

func (d *draftSet) begin(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names == nil {
		d.names = make(map[string]bool)
	}
	d.names[name] = true
}

func (d *draftSet) end(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, name)
}

// RemoveDrafts removes the files that Write has begun and not completed, for a program that ends in the middle of it and at
// once: a Write that would begin or end meanwhile waits for good.
func RemoveDrafts() { drafts.remove() }

// remove removes all drafts. It keeps the lock.
func (d *draftSet) remove() {
	d.mu.Lock()
	for name := range d.names {
		os.Remove(name)
	}
}

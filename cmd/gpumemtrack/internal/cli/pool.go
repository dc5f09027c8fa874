package cli

import (
	"os"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
)

// Pool reads many files, several at the same time, in the memory that --max-memory allows for one.
type Pool struct {
	app    *App
	limits bounded.Limits
	budget *bounded.Budget
}

// NewPool returns a pool with the limits that the flags set, or the defaults.
func NewPool(a *App) *Pool {
	limits := limitsOf(a)
	limitMemory(limits.Memory)
	return &Pool{a, limits, bounded.NewBudget(limits.Memory)}
}

// Read reads a file as Open does and passes it to use, which must keep little of it. It waits until there is memory: at first
// for as much as the file is large, and if that becomes too little beside the others, for all of it. Then the file is read
// again, and use may be called again. Any goroutine may call Read, though not within use.
func (p *Pool) Read(word string, use func(*files.File) error) error {
	least := int64(bounded.Base)
	if info, err := os.Stat(word); err == nil {
		least = max(least, info.Size())
	}
	short, err := p.read(word, least, use)
	if short {
		_, err = p.read(word, p.budget.Size(), use)
	}
	return err
}

// read reads a file with a share of the memory that begins with so many bytes. short says that it was too small, and could not
// grow.
func (p *Pool) read(word string, least int64, use func(*files.File) error) (short bool, err error) {
	limits := p.limits
	limits.Share = p.budget.Wait(least)
	defer limits.Share.Release()
	in, err := openWithin(p.app, word, limits)
	if err != nil {
		return false, err
	}
	defer in.Close()
	f, err := in.File()
	if err == nil {
		err = use(f)
	}
	if short = err != nil && limits.Share.Short(); short {
		p.app.progress.read(-int(in.Done())) // all of it is read again
	}
	return short, err
}

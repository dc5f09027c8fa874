// Package report writes the marks of a tracker: as text, to files with a date in their names or to a program's own
// writer. It never holds up who tracks for longer than one write, and keeps the errors of writing for its owner.
package report

import (
	"errors"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Begin writes the first lines. Unlike later blocks, they must be written: if they
// cannot be, no file stays.
func (r *Report) Begin(at time.Time, device string, levels snapshot.Levels) (err error) {
	if r.File != nil {
		err = r.File.begin(levels)
	}
	if err == nil && r.Writer != nil {
		err = r.enqueue(appendHeader(nil, at, device, levels)).deliver()
	}
	if err != nil && r.File != nil {
		err = errors.Join(err, r.File.remove())
	}
	return err
}

// Add writes the mark's block to the file, and queues it for the writer. The caller holds the
// marking lock, which keeps the blocks in order.
func (r *Report) Add(m *snapshot.Mark) (queued *Block) {
	if r.File == nil && r.Writer == nil {
		return nil
	}
	r.text = appendMark(r.text[:0], m, r.Device)
	if r.File != nil {
		r.keep(r.File.write(m, r.text))
	}
	if r.Writer != nil {
		queued = r.enqueue(r.text)
	}
	return queued
}

// End closes the file, and returns what the writer is to get before the report is
// closed. The caller holds the marking lock.
func (r *Report) End() (queued *Block) {
	if r.File != nil {
		r.keep(r.File.close())
		r.File = nil
	}
	if r.Writer != nil {
		queued = r.enqueue(nil)
	}
	return queued
}

// Settle waits until the block is with the writer, and logs the first error. The
// caller holds no lock: neither the writer's code nor the logger's is ours.
func (r *Report) Settle(queued *Block) {
	if queued != nil {
		_ = queued.deliver() // it has kept the error
	}
	if err := r.unlogged(); err != nil {
		r.Log.Error("gpumemtrack: the memory report could not be written; tracking goes on", "err", err)
	}
}

// unlogged returns the error that is to be logged, once.
func (r *Report) unlogged() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logged {
		return nil
	}
	r.logged = r.err != nil
	return r.err
}

func (r *Report) Failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

package tracker

import (
	"errors"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// begin writes the first lines. Unlike later blocks, they must be written: if they
// cannot be, no file stays.
func (r *report) begin(at time.Time, device string, levels snapshot.Levels) (err error) {
	if r.file != nil {
		err = r.file.begin(levels)
	}
	if err == nil && r.writer != nil {
		err = r.enqueue(appendHeader(nil, at, device, levels)).deliver()
	}
	if err != nil && r.file != nil {
		err = errors.Join(err, r.file.remove())
	}
	return err
}

// add writes the mark's block to the file, and puts it in the queue of the writer.
// The caller holds the marking lock, which orders the blocks.
func (r *report) add(m *snapshot.Mark) (queued *block) {
	if r.file == nil && r.writer == nil {
		return nil
	}
	r.text = appendMark(r.text[:0], m, r.device)
	if r.file != nil {
		r.keep(r.file.write(m, r.text))
	}
	if r.writer != nil {
		queued = r.enqueue(r.text)
	}
	return queued
}

// end closes the file, and returns what the writer is to get before the report is
// closed. The caller holds the marking lock.
func (r *report) end() (queued *block) {
	if r.file != nil {
		r.keep(r.file.close())
		r.file = nil
	}
	if r.writer != nil {
		queued = r.enqueue(nil)
	}
	return queued
}

// settle waits until the block is with the writer, and logs the first error. The
// caller holds no lock: neither the writer's code nor the logger's is ours.
func (r *report) settle(queued *block) {
	if queued != nil {
		_ = queued.deliver() // it has kept the error
	}
	if err := r.unlogged(); err != nil {
		r.log.Error("gpumemtrack: the memory report could not be written; tracking goes on", "err", err)
	}
}

// unlogged returns the error that is to be logged, once.
func (r *report) unlogged() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logged {
		return nil
	}
	r.logged = r.err != nil
	return r.err
}

func (r *report) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Package report writes the marks of a tracker: as text, to files with a date in their names or to a program's own
// writer. A call of Track waits for one write at most. An error of writing is kept for the owner.
package report

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Report writes a block of text for each mark, in one Write, to the report's
// file and to the writer that the configuration names. An error is kept, logged
// once, and does not stop later blocks.
type Report struct {
	Device string      // named in each block, unless it is the first device
	File   *ReportFile // nil means none; the tracker's marking lock guards it
	text   []byte      // text of the mark being made; the same lock guards it
	Writer io.Writer   // nil means none
	spare  []byte      // capacity for a block's text; guarded by writers.mu
	Log    *slog.Logger

	mu     sync.Mutex
	err    error // the first
	logged bool
}

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

// Deliver waits until the block is with the writer, and logs the first error. The
// caller holds no lock: neither the writer's code nor the logger's is ours.
func (r *Report) Deliver(queued *Block) {
	if queued != nil {
		_ = queued.deliver() // it has kept the error
	}
	if err := r.unlogged(); err != nil {
		r.Log.Error("gpumemtrack: the memory report could not be written; tracking goes on", "err", err)
	}
}

// Failure returns the first error, or nil.
func (r *Report) Failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// keep remembers the first error.
func (r *Report) keep(err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = fmt.Errorf("write the memory report: %w", err)
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

// writers has the queues of the writers that text waits for. A writer's code is
// not ours: Write may block, panic, or call anything of this package. So it runs with
// no lock held, one Write of a writer at a time, and holds up only those that write
// to the same writer.
//
// A Track waits until its block is written, unless a Write calls it: that might wait
// for itself. Then it leaves its block, which is written when the Write has returned. A
// block that is left while such a block is written waits for the next Track, so that
// even a Write that always calls Track comes to an end.
var writers = struct {
	mu     sync.Mutex
	queues map[any]*queue // by writer; a queue exists only while it is in use
	inside map[uint64]int // goroutines that are in a call of Write, with the number of calls
}{
	queues: make(map[any]*queue),
	inside: make(map[uint64]int),
}

// queue is the text that waits for one writer. writers.mu guards it.
type queue struct {
	key    any
	writer io.Writer
	blocks []*Block
	busy   bool      // a Write is under way
	moved  sync.Cond // broadcast when it has returned
}

// Block is text of one report: of a mark, or of several that were left.
type Block struct {
	queue   *queue
	report  *Report
	text    []byte
	missing int  // marks that were left too, and were too much to keep
	left    bool // the next goroutine that comes by writes it
	written bool
	err     error
}

// maxLeft bounds the text that is left for one report.
const maxLeft = 1 << 20

// enqueue puts a copy of the text behind what waits for the writer. The caller may
// hold the lock that orders its blocks; it calls deliver when it holds none.
func (r *Report) enqueue(text []byte) *Block {
	writers.mu.Lock()
	defer writers.mu.Unlock()
	key := r.writerKey()
	q := writers.queues[key]
	if q == nil {
		q = &queue{key: key, writer: r.Writer, moved: sync.Cond{L: &writers.mu}}
		writers.queues[key] = q
	}
	left := writers.inside[callstack.Goroutine()] > 0
	if n := len(q.blocks); left && n > 0 && q.blocks[n-1].left && q.blocks[n-1].report == r {
		q.blocks[n-1].join(text)
		return q.blocks[n-1]
	}
	b := &Block{queue: q, report: r, text: append(r.spare[:0], text...), left: left}
	r.spare = nil
	q.blocks = append(q.blocks, b)
	return b
}

// writerKey returns a key that is equal for all reports with the same writer, if the writer can be
// compared.
func (r *Report) writerKey() any {
	if w := reflect.ValueOf(r.Writer); w.Comparable() && w.Equal(w) {
		return r.Writer
	}
	return r
}

// join adds the text of another mark.
func (b *Block) join(text []byte) {
	if b.missing > 0 || len(b.text)+len(text) > maxLeft {
		b.missing++
		return
	}
	b.text = append(b.text, text...)
}

// deliver returns when the block has been written, with the error of writing it. It returns at once
// if the block is left for another Track to write.
func (b *Block) deliver() error {
	writers.mu.Lock()
	defer writers.mu.Unlock()
	q := b.queue
	defer func() {
		if !b.written && !b.left { // the Write of a block before it panicked
			b.left = true
			q.moved.Broadcast()
		}
	}()
	for !b.written {
		switch {
		case !q.busy && (q.blocks[0] == b || q.blocks[0].left):
			q.writeFirst()
		case b.left:
			return nil
		default:
			q.moved.Wait()
		}
	}
	for range q.leftInFront() {
		q.writeFirst()
	}
	return b.err
}

// leftInFront returns how many blocks at the front of the queue were left.
func (q *queue) leftInFront() int {
	if waited := slices.IndexFunc(q.blocks, func(b *Block) bool { return !b.left }); waited >= 0 {
		return waited
	}
	return len(q.blocks)
}

// writeFirst writes the queue's first block. The caller holds writers.mu, which writeFirst releases
// while it writes.
func (q *queue) writeFirst() {
	b, me := q.blocks[0], callstack.Goroutine()
	q.blocks = slices.Delete(q.blocks, 0, 1)
	q.busy = true
	writers.inside[me]++
	writers.mu.Unlock()
	b.err = errNoReturn
	defer func() {
		b.report.keep(b.err)
		writers.mu.Lock()
		b.written, q.busy = true, false
		b.report.spare, b.text = b.text, nil
		if writers.inside[me]--; writers.inside[me] == 0 {
			delete(writers.inside, me)
		}
		if len(q.blocks) == 0 {
			delete(writers.queues, q.key)
		}
		q.moved.Broadcast()
	}()
	b.err = b.writeTo(q.writer)
}

var errNoReturn = errors.New("the call of Write did not return")

func (b *Block) writeTo(w io.Writer) error {
	text := b.text
	if b.missing > 0 {
		text = appendMissing(text, b.missing, "the writer's own Write made too many")
	}
	if len(text) == 0 {
		return nil
	}
	n, err := w.Write(text)
	if err == nil && n < len(text) {
		err = io.ErrShortWrite
	}
	return err
}

package tracker

import (
	"fmt"
	"runtime"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// RecordStream says that work on a stream uses the buffer, in addition to work on the stream that it was
// allocated for. When the buffer is freed, its memory is pending until the work
// that is queued on such streams by then is done; only then it is handed out again. Call
// it before Free. The stream must live until the memory is no longer pending.
//
// The error is alloc.ErrDoubleFree for a buffer that is freed, and errors.ErrUnsupported if the
// device has no events (RecordEvent of alloc.Device): there, wait for the stream before Free. It is
// also errors.ErrUnsupported for CU_STREAM_PER_THREAD, which is a different stream on each thread.
// Without a cache, on a device that knows no streams, RecordStream does nothing: the driver's own
// free waits for all work.
func (b *Buffer) RecordStream(s alloc.Stream) error {
	t := b.tracker()
	t.mu.Lock()
	var err error
	live := b.live() != nil
	if live && t.cache != nil {
		err = t.locked.RecordStream(b.block, s)
	}
	t.mu.Unlock()
	switch {
	case !live:
		return fmt.Errorf("record stream %#x for %v: %w", uint64(s), b, alloc.ErrDoubleFree)
	case t.cache == nil && t.streamed != nil:
		return t.streamed.RecordStream(b.ptr, s)
	case err == nil && t.freed != nil:
		t.freed.recordStream(b, s)
	}
	return err
}

// FreeOn calls RecordStream and then Free. Use it for a buffer whose last work was queued on
// another stream than its own. If there is an error, the buffer stays live. FreeOn of a nil Buffer
// does nothing.
func (b *Buffer) FreeOn(s alloc.Stream) error {
	if b == nil {
		return nil
	}
	err := error(nil)
	if t := b.tracker(); t.freed == nil {
		err = b.free(&s)
	} else {
		err = t.freed.free(b, &s, tables.StackID(t.stacks.Table.Capture(1)))
	}
	runtime.KeepAlive(b)
	return err
}

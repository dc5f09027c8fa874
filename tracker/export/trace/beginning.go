package trace

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// beginning is what there was before the first event of a device.
type beginning struct {
	time     time.Time // of the first event; the snapshot's if there is none
	levels   walk.Levels
	segments bool              // the history tells of segments
	sections map[uint64]string // those that end in the history but begin before it, by span
}

func beginningOf(r *snapshot.Record) beginning {
	b := beginning{time: r.Snapshot.Time, sections: make(map[uint64]string)}
	var all walk.Levels
	began := make(map[uint64]bool)
	first := true
	for e := range r.Events() {
		if first {
			b.time, first = e.Time, false
		}
		change := changeOf(&e)
		all = all.Add(change)
		b.segments = b.segments || change.Reserved != 0
		switch e.Action {
		case mem.SectionBegan:
			began[e.Span] = true
		case mem.SectionEnded:
			if !began[e.Span] {
				b.sections[e.Span] = e.Section
			}
			delete(began, e.Span)
		}
	}
	b.levels = walk.Levels{Allocated: r.Snapshot.Allocated, Reserved: r.Snapshot.Reserved}.Before(all)
	return b
}

func changeOf(e *snapshot.Event) walk.Levels {
	return walk.Change(e.Action, e.Memory, e.Requested, e.Allocated)
}

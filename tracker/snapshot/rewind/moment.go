package rewind

import (
	"fmt"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Moment is an instant of a dump's history.
type Moment struct {
	At    string      `json:"at"`              // "end", "peak", "oom", or "event"
	Event uint64      `json:"event,omitempty"` // the events that had happened
	Asked alloc.Bytes `json:"failed_request_bytes,omitempty"`
}

// String names the moment: "the error".
func (m Moment) String() string {
	switch m.At {
	case "event":
		return "event " + strconv.FormatUint(m.Event, 10)
	case "oom":
		return "the error"
	}
	return "the " + m.At
}

// To returns the state of a dump at a moment. word is "end" for its snapshot, "peak" for the most
// allocated bytes, "oom" for the latest out of memory error, or a number for the state before that
// event. An empty word means the error if the dump was written because of one, otherwise the end.
// The errors are those of At, or say that the dump has no such moment.
func To(d *snapshot.Dump, word string) (*snapshot.Snapshot, Moment, error) {
	end := Moment{At: "end", Event: d.Snapshot.Events}
	switch word {
	case "":
		if d.OOM == nil {
			return d.Snapshot, end, nil
		}
		if s, at, err := toError(d); err == nil {
			return s, at, nil
		}
		return d.Snapshot, end, nil // what came before the end is not known
	case "end":
		return d.Snapshot, end, nil
	case "peak":
		s, err := atPeak(d)
		if err != nil {
			return nil, Moment{}, err
		}
		return s, Moment{At: "peak", Event: s.Events}, nil
	case "oom":
		return toError(d)
	}
	event, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		return nil, Moment{}, fmt.Errorf("no moment %q: want end, peak, oom, or the number of an event", word)
	}
	s, err := At(d, event)
	return s, Moment{At: "event", Event: event}, err
}

// toError goes to the latest out of memory event. A dump that was written because of an error but
// has no event of it ends at the error: then its snapshot is the state.
func toError(d *snapshot.Dump) (*snapshot.Snapshot, Moment, error) {
	changed := false
	for e := range walk.Backward(d) {
		if e.Action != mem.OutOfMemory {
			changed = changed || walk.Of(e.Action) != walk.None
			continue
		}
		m := Moment{At: "oom", Event: e.Seq, Asked: e.Requested}
		if !changed {
			return d.Snapshot, m, nil
		}
		s, err := At(d, e.Seq)
		return s, m, err
	}
	if d.OOM == nil {
		return nil, Moment{}, fmt.Errorf("no out of memory error among its %d events", len(tables.OfHistory(&d.History).Events))
	}
	return d.Snapshot, Moment{At: "oom", Event: d.Snapshot.Events, Asked: max(0, d.OOM.Requested)}, nil
}

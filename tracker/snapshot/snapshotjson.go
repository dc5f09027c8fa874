package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tablejson"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Read reads what WriteJSON wrote, packed by gzip or not. The error says what is wrong with the
// text: it is damaged, of another version, or contradicts itself.
func Read(r io.Reader) (*Snapshot, error) {
	in, err := jsonstream.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	s, err := readSnapshot(in)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("read snapshot: the text ends before the snapshot does: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return nil, fmt.Errorf("read snapshot: %w", err)
	case s == nil:
		return nil, errors.New("read snapshot: it is null")
	}
	return s, nil
}

// UnmarshalJSON reads what WriteJSON wrote.
func (s *Snapshot) UnmarshalJSON(text []byte) error {
	in, err := jsonstream.NewReader(bytes.NewReader(text))
	if err != nil {
		return err
	}
	read, err := readSnapshot(in)
	if err == nil && read != nil {
		*s = *read
	}
	return err
}

// readSnapshot reads a snapshot; nil if it is null.
func readSnapshot(in *jsonstream.Reader) (*Snapshot, error) {
	var head snapshotHead
	lists, err := tablejson.ReadSnapshot(in, &head)
	if lists == nil || err != nil {
		return nil, err
	}
	return loadSnapshot(head, lists)
}

// maxOrdinal bounds the number of a device, by which formats have a list of devices.
const maxOrdinal = 1<<16 - 1

// loadSnapshot makes a snapshot from the parts of a file. The error says that it is no snapshot, or
// that the parts contradict each other.
func loadSnapshot(in snapshotHead, from *tablejson.Snapshot) (*Snapshot, error) {
	if err := jsonstream.CheckSchema(in.Schema, in.Version, jsonstream.SnapshotSchema, jsonstream.SnapshotVersion); err != nil {
		return nil, err
	}
	if in.Ordinal < 0 || in.Ordinal > maxOrdinal {
		return nil, fmt.Errorf("device %d: want 0 to %d", in.Ordinal, maxOrdinal)
	}
	if err := in.Origin.check(); err != nil {
		return nil, fmt.Errorf("origin: %w", err)
	}
	if err := tables.CheckStreams(in.Streams); err != nil {
		return nil, err
	}
	levels, err := in.levels()
	if err != nil {
		return nil, err
	}
	epoch := in.Time
	if !in.Start.IsZero() {
		epoch = in.Start
	}
	lists, err := from.Load(epoch, in.Streams)
	if err != nil {
		return nil, err
	}
	return &Snapshot{
		Time: in.Time, Origin: in.Origin, Device: in.Device, Ordinal: in.Ordinal, UUID: in.UUID, Levels: levels,
		Peak: in.Peak, Total: in.Total, Events: in.Events, Cache: in.Cache, Segments: from.Segments, Settings: in.Settings, Tables: tables.Wrap(lists),
	}, nil
}

// WriteJSON writes the snapshot as one JSON object, in memory that does not grow with the
// number of live buffers, but with the blocks of one segment. docs/snapshot.schema.json
// describes it. The error is the writer's.
func (s *Snapshot) WriteJSON(w io.Writer) error {
	out := jsonstream.NewWriter(w)
	s.writeTo(out)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

func (s *Snapshot) writeTo(out *jsonstream.Writer) {
	lists := tables.Of(&s.Tables)
	out.Head(snapshotHead{
		jsonstream.SnapshotSchema, jsonstream.SnapshotVersion, s.Time, s.Origin, s.Device, s.Ordinal, s.UUID, s.Levels.json(), s.Peak, s.Total, s.Events, s.Cache, s.Settings, lists.Streams, s.start(),
	})
	tablejson.WriteSnapshot(out, lists, s.Segments)
	out.Bytes([]byte("}\n"))
}

// start returns from when on the windows of lifetimes count, if there are some.
func (s *Snapshot) start() time.Time {
	if tables.Of(&s.Tables).Paths == nil {
		return time.Time{}
	}
	return tables.Of(&s.Tables).Epoch
}

// MarshalJSON returns what WriteJSON writes.
func (s Snapshot) MarshalJSON() ([]byte, error) { return jsonstream.Marshal(s.WriteJSON) }

// snapshotHead is a snapshot's JSON form before its tables.
type snapshotHead struct {
	Schema  string    `json:"schema"`
	Version int       `json:"version"`
	Time    time.Time `json:"time"`
	Origin  Origin    `json:"origin,omitzero"`
	Device  string    `json:"device"`
	Ordinal int       `json:"ordinal"`
	UUID    string    `json:"uuid,omitempty"`
	levelsJSON
	Peak   mem.Tally    `json:"peak"`
	Total  mem.Tally    `json:"total"`
	Events uint64       `json:"events"`
	Cache  *alloc.Stats `json:"cache,omitempty"`

	Settings map[string]string `json:"settings,omitempty"`
	Streams  []alloc.Stream    `json:"streams,omitempty"`
	Start    time.Time         `json:"start,omitzero"` // from when on the windows of lifetimes count
}

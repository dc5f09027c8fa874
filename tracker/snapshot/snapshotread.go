package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Read reads what WriteJSON wrote, packed by gzip or not, and keeps no text of it. The
// error says what is wrong with the text: torn, of another version, or at odds with itself.
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
	var tables snapshotTables
	var small jsonstream.Rest
	names := make(jsonstream.Texts)
	found, err := in.Members(func(key string) error {
		switch key {
		case "segments":
			return in.Elements(func() error {
				segment, err := readSegment(in)
				tables.Segments = append(tables.Segments, segment)
				return err
			})
		case "stacks":
			return jsonstream.ReadTable(in, &tables.Stacks, stackEntryBytes, func(text []byte, e *stackJSON) error { return e.read(in, text) })
		case "frames":
			return jsonstream.ReadTable(in, &tables.Frames, frameEntryBytes, func(text []byte, f *mem.Frame) error { return readFrame(text, f, names) })
		case "sites":
			return jsonstream.ReadTable(in, &tables.Sites, siteEntryBytes, func(text []byte, e *siteJSON) error { return readSite(text, e, names) })
		case "retired":
			return jsonstream.ReadTable(in, &tables.Retired, siteEntryBytes, jsonstream.Unmarshal)
		case "allocations":
			return tables.Allocations.readFrom(in)
		case "lifetimes":
			return jsonstream.ReadTable(in, &tables.Lifetimes, siteEntryBytes, jsonstream.Unmarshal)
		case "growing":
			return jsonstream.ReadTable(in, &tables.Growing, siteEntryBytes, jsonstream.Unmarshal)
		}
		return small.Add(in, key)
	})
	if !found || err != nil {
		return nil, err
	}
	if err := small.Unmarshal(&head); err != nil {
		return nil, err
	}
	return loadSnapshot(head, tables)
}

// The bytes that entries of the tables take, as jsonstream.Reader.Use counts them.
const (
	stackEntryBytes = 96
	frameEntryBytes = 64
	siteEntryBytes  = 384
	allocationBytes = 96
	blockEntryBytes = 48
)

package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Read reads what WriteJSON wrote, packed by gzip or not, and keeps no text of it. The
// error says what is wrong with the text: torn, of another version, or at odds with itself.
func Read(r io.Reader) (*Snapshot, error) {
	in, err := newJSONStream(r)
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
	in, err := newJSONStream(bytes.NewReader(text))
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
func readSnapshot(in *jsonStream) (*Snapshot, error) {
	var head snapshotHead
	var tables snapshotTables
	var small rest
	names := make(texts)
	found, err := in.members(func(key string) error {
		switch key {
		case "segments":
			return in.elements(func() error {
				segment, err := readSegment(in)
				tables.Segments = append(tables.Segments, segment)
				return err
			})
		case "stacks":
			return readTable(in, &tables.Stacks, stackEntryBytes, func(text []byte, e *stackJSON) error { return e.read(in, text) })
		case "frames":
			return readTable(in, &tables.Frames, frameEntryBytes, func(text []byte, f *Frame) error { return readFrame(text, f, names) })
		case "sites":
			return readTable(in, &tables.Sites, siteEntryBytes, func(text []byte, e *siteJSON) error { return readSite(text, e, names) })
		case "retired":
			return readTable(in, &tables.Retired, siteEntryBytes, unmarshal)
		case "allocations":
			return tables.Allocations.readFrom(in)
		case "lifetimes":
			return readTable(in, &tables.Lifetimes, siteEntryBytes, unmarshal)
		case "growing":
			return readTable(in, &tables.Growing, siteEntryBytes, unmarshal)
		}
		return small.add(in, key)
	})
	if !found || err != nil {
		return nil, err
	}
	if err := small.unmarshal(&head); err != nil {
		return nil, err
	}
	return loadSnapshot(head, tables)
}

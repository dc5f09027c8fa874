package jsonstream

import (
	"bytes"
	"fmt"
	"regexp"
)

// The schemas of the JSON forms, and their versions. A version rises when a reader of the one before
// would misread it; files of earlier versions are read. In version 1 of a snapshot and of a history a
// stack was its frames, now it is their numbers in a table. Version 2 of a snapshot has what grew from mark to mark,
// version 3 what windows of time buffers were born and freed in. Since version 2 of a dump, a profile and a delta, version 3 of
// a history and version 4 of a snapshot, what is unknown is null, and a call site is a "call_site", which was a "site".
const (
	DumpSchema     = "gpumemtrack.dump" // around those of its parts
	SnapshotSchema = "gpumemtrack.snapshot"
	HistorySchema  = "gpumemtrack.history"
	ProfileSchema  = "gpumemtrack.profile"
	DeltaSchema    = "gpumemtrack.delta"

	DumpVersion     = 2
	SnapshotVersion = 4
	HistoryVersion  = 3
	ProfileVersion  = 2
	DeltaVersion    = 2
)

// CheckSchema refuses what is not of the schema, or of a later version.
func CheckSchema(schema string, version int, wantSchema string, latest int) error {
	switch {
	case schema != wantSchema:
		return fmt.Errorf("the schema is %q, want %q", schema, wantSchema)
	case version < 1 || version > latest:
		return fmt.Errorf("%s of version %d, this program reads versions up to %d", schema, version, latest)
	}
	return nil
}

var site = regexp.MustCompile(`"(sites?"\s*:)`)

// Current returns the text of an object in which the keys of earlier versions have today's names. What it finds are
// keys: only these are before a colon.
func Current(text []byte) []byte {
	if !bytes.Contains(text, []byte(`"site`)) { // as in all that is not old
		return text
	}
	return site.ReplaceAll(text, []byte(`"call_$1`))
}

package jsonstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
)

// The schemas of the JSON forms, and their versions. A version rises when a reader of the version
// before would misread the file; files of earlier versions can still be read. In version 1 of a
// snapshot and of a history a stack had its frames; now it has their numbers in a table. Version 2
// of a snapshot added what grew from mark to mark, version 3 the windows of time in which buffers
// were born and freed. Since version 2 of a dump, a profile and a delta, version 3 of a history and
// version 4 of a snapshot, an unknown value is null, and the key for a call site is "call_site",
// not "site".
const (
	DumpSchema     = "gpumemtrack.dump" // encloses the schemas of its parts
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

// renamed are the keys of earlier versions, and of files that were written before the first release, with today's.
var renamed = map[string]string{
	"site": "call_site", "sites": "call_sites", "lost": "unreachable", "births": "ordinals",
	"own_peak_bytes": "self_peak_bytes", "releasable_bytes": "reclaimable_bytes",
}

var oldKey = regexp.MustCompile(`"(sites?|lost|births|own_peak_bytes|releasable_bytes)"(\s*:)`)

// Current returns the text of an object with the keys of earlier versions renamed to today's. Only
// a key is followed by a colon, so no other text is changed.
func Current(text []byte) []byte {
	old := func(name string) bool { return bytes.Contains(text, []byte(name)) }
	if !old(`"site`) && !old(`"lost`) && !old(`"births`) && !old(`"own_peak`) && !old(`"releasable`) { // the usual case
		return text
	}
	return oldKey.ReplaceAllFunc(text, func(found []byte) []byte {
		name, colon, _ := bytes.Cut(found[1:], []byte{'"'})
		return append([]byte(`"`+renamed[string(name)]+`"`), colon...)
	})
}

// Amount is an amount in bytes. -1 means unknown, and is null in JSON; files of earlier versions
// have -1.
type Amount int64

// MarshalJSON writes null for an unknown amount.
func (a Amount) MarshalJSON() ([]byte, error) {
	if a == -1 {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, int64(a), 10), nil
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (a *Amount) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*a = -1
		return nil
	}
	return json.Unmarshal(text, (*int64)(a))
}

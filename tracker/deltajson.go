package tracker

import (
	"encoding/json"
	"fmt"
)

// The schema of a delta's JSON form.
const (
	DeltaSchema  = "gpumemtrack.delta"
	DeltaVersion = 1
)

type deltaJSON struct {
	Schema  string   `json:"schema"`
	Version int      `json:"version"`
	Changes []Change `json:"changes"`
}

// MarshalJSON writes the changes in their order, with the schema and its version.
func (d Delta) MarshalJSON() ([]byte, error) {
	changes := d.changes
	if changes == nil {
		changes = []Change{}
	}
	return json.Marshal(deltaJSON{DeltaSchema, DeltaVersion, changes})
}

// UnmarshalJSON reads what MarshalJSON wrote. A change whose lines of code do
// not add up to it is an error.
func (d *Delta) UnmarshalJSON(text []byte) error {
	var in deltaJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	if err := checkSchema(in.Schema, in.Version, DeltaSchema, DeltaVersion); err != nil {
		return fmt.Errorf("read delta: %w", err)
	}
	for i, c := range in.Changes {
		if _, err := newTensor(c.Shape, c.DType, c.Kind); err != nil {
			return fmt.Errorf("read delta: change %d: %w", i, err)
		}
		var sum Tally
		for _, site := range c.Sites {
			sum = sum.Add(site.Tally)
		}
		if sum != c.Tally {
			return fmt.Errorf("read delta: change %d is %v, but its sites add up to %v", i, c.Tally, sum)
		}
	}
	*d = Delta{changes: in.Changes}
	if len(in.Changes) == 0 {
		d.changes = nil
	}
	return nil
}

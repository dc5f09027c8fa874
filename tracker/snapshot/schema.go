package snapshot

import (
	"fmt"
)

// checkSchema refuses what is not of the schema, or of a later version.
func checkSchema(schema string, version int, wantSchema string, latest int) error {
	switch {
	case schema != wantSchema:
		return fmt.Errorf("the schema is %q, want %q", schema, wantSchema)
	case version < 1 || version > latest:
		return fmt.Errorf("%s of version %d, this program reads versions up to %d", schema, version, latest)
	}
	return nil
}

package tape

import (
	"fmt"
)

// String is the band as printed after a figure: " (-1.2 % to +4.6 %)".
func (b Band) String() string {
	if b == (Band{}) {
		return ""
	}
	return fmt.Sprintf(" (-%.1f %% to +%.1f %%)", 100*b.Below, 100*b.Above)
}

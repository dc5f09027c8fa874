package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func placeOf(stack snapshot.StackID, in *section, stream uint8) ledger.Place {
	return ledger.Place{Place: snapshot.Place{Stack: stack, Section: in.pathID()}, Stream: stream}
}

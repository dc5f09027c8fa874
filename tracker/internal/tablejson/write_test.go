package tablejson

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func TestEventsAreWrittenAsTheirTagsSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := historyEvent{
			Since:  time.Duration(rapid.Int64().Draw(t, "ns")),
			Action: rapid.SampledFrom([]mem.Action{mem.Allocated, mem.Freed, mem.OutOfMemory, mem.Marked}).Draw(t, "action"),
			Ptr:    alloc.Ptr(rapid.Uint64().Draw(t, "address")),
			Bytes:  alloc.Bytes(rapid.Int64().Draw(t, "bytes")), Number: rapid.Int64().Draw(t, "number"),
			Group: rapid.Int().Draw(t, "group"), Stack: rapid.Int().Draw(t, "stack"), Section: rapid.Uint32().Draw(t, "section"),
		}
		want, err := json.Marshal(e)
		require.NoError(t, err)
		require.Equal(t, string(want), string(e.appendJSON(nil)))
	})
}

func TestAllocationsAreWrittenAsTheirTagsSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := allocationJSON{
			Seq:       rapid.Uint64().Draw(t, "seq"),
			Time:      time.Unix(0, rapid.Int64Range(0, 1<<62).Draw(t, "time")).In(time.FixedZone("", 3600*rapid.IntRange(-12, 12).Draw(t, "zone"))),
			Ptr:       alloc.Ptr(rapid.Uint64().Draw(t, "address")),
			Site:      rapid.Int().Draw(t, "site"),
			Allocated: alloc.Bytes(rapid.Int64().Draw(t, "allocated")),
			Label:     rapid.String().Draw(t, "label"), Section: rapid.String().Draw(t, "section"),
			Registered: rapid.Bool().Draw(t, "registered"), Lost: rapid.Bool().Draw(t, "lost"),
		}
		want, err := json.Marshal(a)
		require.NoError(t, err)
		got, err := a.appendJSON(nil)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	})
}

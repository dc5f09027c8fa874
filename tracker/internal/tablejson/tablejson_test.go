package tablejson

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// FuzzEntries holds the fast ways to read an entry against json.Unmarshal.
func FuzzEntries(f *testing.F) {
	f.Add(`{"seq":1,"time":"2026-01-02T03:04:05.000000006Z","address":4096,"site":0,"allocated_bytes":512}`)
	f.Add(`{"seq":1,"label":"a\u00e9","registered":true,"unreachable":false,"Site":3}`)
	f.Add(`{"ns":-5,"action":"alloc","address":4096,"bytes":512,"group":-1,"stack":-1,"section":70000,"stream":3}`)
	f.Add(`{"address":1,"bytes":2,"requested_bytes":1,"state":"pending"}`)
	f.Add(`{"kind":"Parameter","dtype":"float32","shape":[64,3],"section":"a/b","stack":0,"site":{"function":"main.f","file":"/a.go","line":7},"live_count":1,"peak_count":2,"total_count":3}`)
	f.Add(`{"kind":"KVCache","shape":null,"stack":-1,"site":{"function":"\u003cinit\u003e","file":"","line":-1},"live_count":1,"stream":2,"each_bytes":9}`)
	f.Add(`{"shape":[],"shape":[1],"site":{"line":1},"site":{"file":"]"},"kind":"Tensor"}`)
	f.Add(`{"shape":"[1]","site":"{}","ordinals":"[1,2]"}`)
	f.Add(`[1,2,3]`)
	f.Add(`[{"function":"f","file":"a","line":1}]`)
	f.Add(`[ 1,-2,"3"]`)
	f.Fuzz(func(t *testing.T, text string) {
		value := jsontext.Value(strings.TrimSpace(text))
		if !value.IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) || value.Kind() != '{' && value.Kind() != '[' {
			t.Skip("jsonstream.Reader refuses it")
		}
		text = string(value)
		got, err := readAllocation([]byte(text))
		var want allocationJSON
		requireSame(t, jsonstream.Unmarshal([]byte(text), &want), err, want, got)

		var gotEvent, wantEvent historyEvent
		err = readEvent([]byte(text), &gotEvent)
		requireSame(t, jsonstream.Unmarshal([]byte(text), &wantEvent), err, wantEvent, gotEvent)

		var gotBlock, wantBlock alloc.Block
		err = readBlock([]byte(text), &gotBlock)
		requireSame(t, jsonstream.Unmarshal([]byte(text), &wantBlock), err, wantBlock, gotBlock)

		var gotSite, wantSite siteJSON
		err = readSite([]byte(text), &gotSite, make(jsonstream.Texts))
		requireSame(t, jsonstream.Unmarshal([]byte(text), &wantSite), err, wantSite, gotSite)

		var gotFrame, wantFrame mem.Frame
		err = readFrame([]byte(text), &gotFrame, make(jsonstream.Texts))
		requireSame(t, jsonstream.Unmarshal([]byte(text), &wantFrame), err, wantFrame, gotFrame)

		empty, err := jsonstream.NewReader(strings.NewReader(""))
		require.NoError(t, err)
		var gotStack, wantStack stackJSON
		err = gotStack.read(empty, []byte(text))
		requireSame(t, jsonstream.Unmarshal([]byte(text), &wantStack), err, wantStack, gotStack)
	})
}

func requireSame[T any](t *testing.T, wantErr, err error, want, got T) {
	require.Equal(t, wantErr == nil, err == nil, "%v, %v", wantErr, err)
	if err == nil {
		require.Equal(t, want, got)
	}
}

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
			Registered: rapid.Bool().Draw(t, "registered"), Unreachable: rapid.Bool().Draw(t, "unreachable"),
		}
		want, err := json.Marshal(a)
		require.NoError(t, err)
		got, err := a.appendJSON(nil)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	})
}

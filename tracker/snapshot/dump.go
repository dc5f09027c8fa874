package snapshot

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tablejson"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// Dump is all that a source knew at a moment, for one device: a snapshot, the history before it (see Events), and more. All
// formats are written from it. WriteJSON writes it as JSON, and ReadDump reads that.
type Dump struct {
	Reason   string           // why it was written
	OOM      *OOM             // what a failed allocation found, if that is the dump's reason
	Build    *debug.BuildInfo // how the program was built; nil if unknown. Do not write to it
	Devices  Devices          // all devices of the process's trackers, this dump's first: name, ordinal, reserved and used memory
	Snapshot *Snapshot        // with the cache's segments
	Marks    []*Mark          // the latest, oldest first
	Profile  sections.Profile // of the sections that have ended; nil if unknown
	// Others are the dumps of the process's other devices, where a file has several.
	Others []*Dump
	// History is the events before the snapshot, which Events iterates over.
	History History
}

// String says why the dump was written and how much it has, above the snapshot's text.
func (d *Dump) String() string {
	if !d.complete() {
		return "dump without a snapshot"
	}
	return fmt.Sprintf("%s: %v, %d marks\n%v", text.Line(cmp.Or(d.Reason, "dump")), d.History, len(d.Marks), d.Snapshot)
}

type dumpHead struct {
	Schema  string         `json:"schema"`
	Version int            `json:"version"`
	Time    time.Time      `json:"time"`
	Reason  string         `json:"reason,omitempty"`
	Process processJSON    `json:"process"`
	Devices []deviceJSON   `json:"devices"`
	LeftOut tables.LeftOut `json:"left_out,omitzero"`

	OOM *OOM `json:"oom,omitempty"`
}

// WriteJSON writes the dump as one JSON object, which ReadDump reads. docs/dump.schema.json
// describes it. The error is the writer's, or says that the dump has no snapshot.
func (d *Dump) WriteJSON(w io.Writer) error {
	if !d.complete() {
		return errors.New("write dump: it has no snapshot")
	}
	out := jsonstream.NewWriter(w)
	d.writeTo(out)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write dump: %w", err)
	}
	return nil
}

// complete reports whether there is a snapshot of each device.
func (d *Dump) complete() bool {
	return d.Snapshot != nil && !slices.ContainsFunc(d.Others, func(other *Dump) bool { return !other.complete() })
}

// MarshalJSON returns what WriteJSON writes.
func (d Dump) MarshalJSON() ([]byte, error) { return jsonstream.Marshal(d.WriteJSON) }

func (d *Dump) writeTo(out *jsonstream.Writer) {
	out.Head(dumpHead{jsonstream.DumpSchema, jsonstream.DumpVersion, d.Snapshot.Time, d.Reason, processOf(d.Snapshot.Origin.PID, d.Build), devicesOf(d.Devices), tables.Of(&d.Snapshot.Tables).LeftOut, d.OOM})
	out.Bytes([]byte(",\n\"snapshot\": "))
	d.Snapshot.writeTo(out)
	if history := tables.OfHistory(&d.History); history.Exists() {
		out.Bytes([]byte(",\n\"history\": "))
		tablejson.WriteHistory(out, history)
	}
	jsonstream.Table(out, "marks", d.Marks, jsonstream.AsJSON(func(m *Mark) any { return m }))
	if d.Profile != nil {
		out.Member("profile", d.Profile)
	}
	for i, other := range d.Others {
		out.Bytes([]byte([]string{",\n\"others\": [\n", ",\n"}[min(i, 1)]))
		other.writeTo(out)
	}
	if len(d.Others) > 0 {
		out.Bytes([]byte("]"))
	}
	out.Bytes([]byte("}\n"))
}

// ReadDump reads what WriteJSON wrote, packed by gzip or not. The error says what is wrong with the
// text: it is damaged, of another version, or contradicts itself.
func ReadDump(r io.Reader) (*Dump, error) {
	in, err := jsonstream.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read dump: %w", err)
	}
	d, err := readDump(in, 0)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the text ends before the dump does: %w", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return nil, fmt.Errorf("read dump: %w", err)
	}
	return d, nil
}

// UnmarshalJSON reads what WriteJSON wrote.
func (d *Dump) UnmarshalJSON(text []byte) error {
	in, err := jsonstream.NewReader(bytes.NewReader(text))
	if err != nil {
		return err
	}
	read, err := readDump(in, 0)
	if err == nil {
		*d = *read
	}
	return err
}

// maxWithin is how deep dumps may be nested. A dump holds those of other devices, which hold none.
const maxWithin = 2

func readDump(in *jsonstream.Reader, within int) (*Dump, error) {
	if within > maxWithin {
		return nil, errors.New("its dumps have dumps that have others")
	}
	var head struct {
		dumpHead
		Marks   []*Mark          `json:"marks"`
		Profile sections.Profile `json:"profile"`
	}
	d := new(Dump)
	var small jsonstream.Rest
	found, err := in.Members(func(key string) (err error) {
		switch key {
		case "snapshot":
			d.Snapshot, err = readSnapshot(in)
		case "history":
			var read *tables.HistoryTables
			if read, err = tablejson.ReadHistory(in); read != nil {
				d.History = tables.WrapHistory(*read)
			}
		case "others":
			err = in.Elements(func() error {
				other, err := readDump(in, within+1)
				d.Others = append(d.Others, other)
				return err
			})
		default:
			err = small.Add(in, key)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := small.Unmarshal(&head); err != nil {
		return nil, err
	}
	if err := jsonstream.CheckSchema(head.Schema, head.dumpHead.Version, jsonstream.DumpSchema, jsonstream.DumpVersion); err != nil {
		return nil, err
	}
	if !found || d.Snapshot == nil {
		return nil, errors.New("it lacks its snapshot")
	}
	if slices.Contains(head.Marks, nil) {
		return nil, errors.New("a mark is null")
	}
	d.Reason, d.OOM, d.Build = head.Reason, head.OOM, head.Process.build()
	for _, in := range head.Devices {
		d.Devices = append(d.Devices, in.snapshot())
	}
	d.Marks, d.Profile, tables.Of(&d.Snapshot.Tables).LeftOut = head.Marks, head.Profile, head.LeftOut
	d.Snapshot.Origin.PID = cmp.Or(d.Snapshot.Origin.PID, head.Process.PID)
	return d, nil
}

// processJSON is the program that wrote a dump.
type processJSON struct {
	PID      int               `json:"pid"`
	Go       string            `json:"go"`
	Path     string            `json:"path"` // import path of the main package
	Version  string            `json:"version"`
	Settings map[string]string `json:"settings,omitempty"` // build settings: GOOS, vcs.revision
	Deps     map[string]string `json:"deps,omitempty"`     // version by module
}

func processOf(pid int, build *debug.BuildInfo) processJSON {
	if build == nil {
		return processJSON{PID: pid}
	}
	p := processJSON{pid, build.GoVersion, build.Path, build.Main.Version, make(map[string]string), make(map[string]string)}
	for _, s := range build.Settings {
		p.Settings[s.Key] = s.Value
	}
	for _, m := range build.Deps {
		p.Deps[m.Path] = m.Version
	}
	return p
}

func (p processJSON) build() *debug.BuildInfo {
	b := &debug.BuildInfo{GoVersion: p.Go, Path: p.Path, Main: debug.Module{Version: p.Version}}
	for _, key := range slices.Sorted(maps.Keys(p.Settings)) {
		b.Settings = append(b.Settings, debug.BuildSetting{Key: key, Value: p.Settings[key]})
	}
	for _, path := range slices.Sorted(maps.Keys(p.Deps)) {
		b.Deps = append(b.Deps, &debug.Module{Path: path, Version: p.Deps[path]})
	}
	if reflect.DeepEqual(b, new(debug.BuildInfo)) {
		return nil
	}
	return b
}

// deviceJSON is the state of a device, as the driver reports it.
type deviceJSON struct {
	Name     string            `json:"name"`
	Ordinal  int               `json:"ordinal"`
	UUID     string            `json:"uuid,omitempty"`
	Used     jsonstream.Amount `json:"used_bytes"`
	Total    jsonstream.Amount `json:"total_bytes"`
	Reserved jsonstream.Amount `json:"reserved_bytes"` // by the tracker
}

func devicesOf(of Devices) (devices []deviceJSON) {
	for _, s := range of {
		devices = append(devices, deviceJSON{s.Device, s.Ordinal, s.UUID, jsonstream.Amount(s.DriverUsed), jsonstream.Amount(s.DriverTotal), jsonstream.Amount(s.Reserved)})
	}
	return devices
}

func (d deviceJSON) snapshot() *Snapshot {
	levels := Levels{DriverUsed: alloc.Bytes(d.Used), DriverTotal: alloc.Bytes(d.Total), Reserved: alloc.Bytes(d.Reserved)}
	return &Snapshot{Device: d.Name, Ordinal: d.Ordinal, UUID: d.UUID, Levels: levels}
}

// LeftOut says what the dump lacks, such as "4096 older events": either the dump would have been
// larger than tracker.Config.MaxDumpBytes, or the file that it was read from is damaged. Levels are
// always complete. Sums by group and call site are complete too, unless LeftOut says otherwise. It
// returns nil if nothing is missing.
func (d *Dump) LeftOut() (what []string) {
	l := &tables.Of(&d.Snapshot.Tables).LeftOut
	for _, part := range []struct {
		n         int64
		one, many string
	}{
		{l.Events, "older event", "older events"}, {l.Marks, "older mark", "older marks"}, {l.Segments, "segment of the cache", "segments of the cache"},
		{l.Broken, "segment with blocks that do not tile it", "segments with blocks that do not tile them"},
		{l.Allocations.Count, "single buffer, which the tables count", "single buffers, which the tables count"},
		{l.Sites, "call stack that held least", "call stacks that held least"},
	} {
		switch {
		case part.n == 1:
			what = append(what, "1 "+part.one)
		case part.n > 1:
			what = append(what, fmt.Sprintf("%d %s", part.n, part.many))
		}
	}
	return what
}

// BrokenSegments returns the number of segments that a damaged file had and that are left out, as their blocks do not tile
// them.
func (d *Dump) BrokenSegments() int64 { return tables.Of(&d.Snapshot.Tables).LeftOut.Broken }

// OOM is what was known when an allocation failed for lack of memory. An unknown amount is -1.
type OOM struct {
	Requested alloc.Bytes `json:"requested_bytes"`
	Group
	Section string `json:"section,omitempty"`

	Free            alloc.Bytes `json:"free_bytes"`  // as the driver says
	Total           alloc.Bytes `json:"total_bytes"` // total of the device
	Reserved        alloc.Bytes `json:"reserved_bytes"`
	Inactive        alloc.Bytes `json:"inactive_bytes"`         // the part of Reserved that is ready for reuse
	LargestInactive alloc.Bytes `json:"largest_inactive_bytes"` // the largest block of it
	Untracked       alloc.Bytes `json:"untracked_bytes"`
	Elsewhere       alloc.Bytes `json:"elsewhere_bytes"` // inactive in the caches of other trackers of the process
	Others          alloc.Bytes `json:"others_bytes"`    // used by other processes

	CallSites []mem.CallSiteTally `json:"call_sites"` // the lines of code that hold most
	Advice    string              `json:"advice"`     // what would help, in one sentence
}

// oomJSON is the JSON form of OOM.
type oomJSON struct {
	Requested jsonstream.Amount `json:"requested_bytes"`
	plainOOM
	Free            jsonstream.Amount `json:"free_bytes"`
	Total           jsonstream.Amount `json:"total_bytes"`
	Reserved        jsonstream.Amount `json:"reserved_bytes"`
	Inactive        jsonstream.Amount `json:"inactive_bytes"`
	LargestInactive jsonstream.Amount `json:"largest_inactive_bytes"`
	Untracked       jsonstream.Amount `json:"untracked_bytes"`
	Elsewhere       jsonstream.Amount `json:"elsewhere_bytes"`
	Others          jsonstream.Amount `json:"others_bytes"`
}

type plainOOM OOM

// MarshalJSON writes null for an unknown value.
func (o OOM) MarshalJSON() ([]byte, error) {
	return json.Marshal(oomJSON{
		jsonstream.Amount(o.Requested), plainOOM(o), jsonstream.Amount(o.Free), jsonstream.Amount(o.Total), jsonstream.Amount(o.Reserved),
		jsonstream.Amount(o.Inactive), jsonstream.Amount(o.LargestInactive), jsonstream.Amount(o.Untracked), jsonstream.Amount(o.Elsewhere), jsonstream.Amount(o.Others),
	})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (o *OOM) UnmarshalJSON(text []byte) error {
	var in oomJSON
	if err := jsonstream.Unmarshal(text, &in); err != nil {
		return err
	}
	*o = OOM(in.plainOOM)
	o.Requested, o.Free, o.Total, o.Reserved = alloc.Bytes(in.Requested), alloc.Bytes(in.Free), alloc.Bytes(in.Total), alloc.Bytes(in.Reserved)
	o.Inactive, o.LargestInactive = alloc.Bytes(in.Inactive), alloc.Bytes(in.LargestInactive)
	o.Untracked, o.Elsewhere, o.Others = alloc.Bytes(in.Untracked), alloc.Bytes(in.Elsewhere), alloc.Bytes(in.Others)
	return nil
}

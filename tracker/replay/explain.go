package replay

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/internal/verdict"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// Explanation says why memory is pinned. Its String and its JSON also say what would have helped, as replays found.
type Explanation struct {
	*explain.Explanation
	moment   rewind.Moment
	advice   string // what would have helped at the error; "" if nothing failed, or if it is not known
	reason   *reason
	baseline baseline
	// settings are those of the allocator, most saved first. They were replayed from a beginning with
	// all buffers packed, so that none has the holes of another. earlier is what there would
	// have been if the buffers of a line of code that were never freed had been allocated before all else.
	settings, earlier []saving
	leftOut           []string   // what the file lacks
	unknown           []string   // recorded settings that are left out
	noReplay          string     // why there is none
	agreement         *agreement // nil if there is nothing to compare with
}

// reason is what the error said that the dump was written for; nil if the account is of another moment.
type reason struct {
	Verdict   verdict.Verdict   `json:"verdict"` // null if it did not say
	Says      string            `json:"says"`
	Untracked jsonstream.Amount `json:"untracked_bytes"` // of the device, in use outside of the tracker
	Others    jsonstream.Amount `json:"others_bytes"`    // of it, by other processes
}

func reasonOf(o *snapshot.OOM) *reason {
	if o == nil || o.Advice == "" && o.Untracked < 0 && o.Others < 0 {
		return nil
	}
	return &reason{verdict.OfAdvice(o.Advice), o.Advice, jsonstream.Amount(o.Untracked), jsonstream.Amount(o.Others)}
}

// String says it, in a line each.
func (r *reason) String() string {
	says := ""
	if r.Says != "" {
		says = fmt.Sprintf("the error said: %s\n", text.Line(r.Says))
	}
	switch {
	case r.Untracked > 0 && r.Others >= 0:
		says += fmt.Sprintf("in use outside of the tracker: %v, of which other processes have %v\n", alloc.Bytes(r.Untracked), alloc.Bytes(r.Others))
	case r.Untracked > 0:
		says += fmt.Sprintf("in use outside of the tracker: %v, by this process or others: by whom is unknown\n", alloc.Bytes(r.Untracked))
	}
	return says
}

// saving says how much a change would have lowered the highest reserved memory.
type saving struct {
	Setting      string      `json:"setting,omitempty"`
	Site         mem.Frame   `json:"call_site,omitzero"`
	Buffers      mem.Tally   `json:"buffers,omitzero"`
	PeakReserved alloc.Bytes `json:"peak_reserved_bytes"`
	Saved        alloc.Bytes `json:"saved_bytes"` // negative if it would have cost more
}

// baseline is the most that replays of the recorded allocator reserve. Savings are measured from
// it. As in all other replays, a request that failed gets its memory.
type baseline struct {
	Packed   alloc.Bytes `json:"packed_bytes"`         // from a packed beginning; settings are compared with it
	Recorded alloc.Bytes `json:"recorded_bytes"`       // from the recorded beginning; an earlier line is compared with it
	Asked    alloc.Bytes `json:"failed_request_bytes"` // the largest that failed; 0 if none did
}

// Explain explains a dump at a moment, named as for rewind.To. It takes up to nine replays, and at an error
// those of Advice. Without a history that can be
// replayed there are no savings, and the explanation says why. The errors are those of rewind.To.
func Explain(r *snapshot.Dump, at string) (*Explanation, error) {
	s, moment, err := rewind.To(r, at)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	x := &Explanation{Explanation: explain.Snapshot(s), moment: moment, leftOut: r.LeftOut(), settings: []saving{}, earlier: []saving{}}
	if moment.At == "oom" {
		x.advice, _ = adviceOf(r) // x has how far replays agree
		x.reason = reasonOf(r.OOM)
	}
	if walk.SourceOf(r.Snapshot) == walk.RMM {
		x.noReplay = "a log of RMM does not have what its memory resource reserved"
		return x, nil
	}
	p, err := compile(r)
	if errors.Is(err, walk.ErrNoHistory) {
		x.noReplay = "the file has no events"
		return x, nil
	}
	if err == nil {
		x.agreement, x.unknown = p.agreement(), p.unknownSettings()
		x.baseline.Asked = p.failed()
		x.settings, x.baseline.Packed, err = p.settings()
	}
	if err == nil {
		x.earlier, x.baseline.Recorded, err = p.earlier(x.Lines)
	}
	if err != nil {
		x.noReplay = err.Error()
	}
	return x, nil
}

// candidates are the settings that Explain replays.
var candidates = []string{
	"", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8",
	"expandable_segments:True,roundup_power2_divisions:8",
}

// failed returns the largest request that failed when it was recorded.
func (p *program) failed() (largest alloc.Bytes) {
	for _, o := range p.ops {
		if o.do == opFailed {
			largest = max(largest, o.bytes)
		}
	}
	return largest
}

func (p *program) settings() ([]saving, alloc.Bytes, error) {
	cfg := Recorded(p.dump)
	cfg.packed = true
	recorded, err := p.run(cfg)
	if err != nil {
		return nil, 0, err
	}
	savings := []saving{}
	for _, setting := range candidates {
		conf, err := cache.ParseConfig(setting)
		if err != nil {
			return nil, 0, err
		}
		with, err := Config{Conf: conf, packed: true}.check()
		if err != nil {
			return nil, 0, err
		}
		if sameSettings(with, cfg) {
			continue
		}
		result, err := p.run(with)
		if err != nil {
			return nil, 0, err
		}
		savings = append(savings, saving{Setting: cmp.Or(setting, "default"), PeakReserved: result.PeakReserved, Saved: recorded.PeakReserved - result.PeakReserved})
	}
	sortSavings(savings)
	return savings, recorded.PeakReserved, nil
}

func sameSettings(a, b Config) bool {
	x, y := a.Conf, b.Conf
	x.ExpandableSegments = y.ExpandableSegments // the Allocator decides
	x.GarbageCollection = y.GarbageCollection   // it concerns full devices
	return a.Allocator == b.Allocator && x == y
}

func sortSavings(s []saving) {
	slices.SortStableFunc(s, func(a, b saving) int { return cmp.Compare(b.Saved, a.Saved) })
}

// earlier replays, for each of the lines that pin most, what it would have saved to allocate its immortal buffers first.
func (p *program) earlier(lines []explain.Line) ([]saving, alloc.Bytes, error) {
	const most = 3
	cfg := Recorded(p.dump)
	recorded, err := p.run(cfg)
	if err != nil {
		return nil, 0, err
	}
	savings := []saving{}
	for _, l := range lines[:min(most, len(lines))] {
		moved, buffers := p.moved(l.CallSite)
		if l.CallSite == (mem.Frame{}) || buffers.Count == 0 {
			continue
		}
		result, err := moved.run(cfg)
		if err != nil {
			return nil, 0, err
		}
		if saved := recorded.PeakReserved - result.PeakReserved; saved > 0 {
			savings = append(savings, saving{Site: l.CallSite, Buffers: buffers, PeakReserved: result.PeakReserved, Saved: saved})
		}
	}
	sortSavings(savings)
	return savings, recorded.PeakReserved, nil
}

// moved returns the program with the buffers of a line that are never freed allocated first.
func (p *program) moved(site mem.Frame) (*program, mem.Tally) {
	var first, rest []op
	var buffers mem.Tally
	past := tables.OfHistory(&p.dump.History)
	for _, o := range p.ops {
		if o.do == opAlloc && !p.buffers[o.buffer].freed && past.Site(p.first+uint64(o.event)) == site {
			first = append(first, o)
			buffers = buffers.Add(mem.Tally{Count: 1, Bytes: p.buffers[o.buffer].requested})
			continue
		}
		rest = append(rest, o)
	}
	out := *p
	out.ops = append(first, rest...)
	return &out, buffers
}

// MarshalJSON writes all that is known, as docs/replay.md describes it.
func (x *Explanation) MarshalJSON() ([]byte, error) {
	first, err := x.snapshot().MarshalJSON()
	if err != nil {
		return nil, err
	}
	more, err := json.Marshal(struct {
		Moment   rewind.Moment `json:"moment"`
		Failure  *reason       `json:"failure,omitempty"`
		Advice   string        `json:"advice,omitempty"`
		Baseline *baseline     `json:"baseline"`
		Settings []saving      `json:"settings"`
		Earlier  []saving      `json:"earlier"`
		Agrees   *agreement    `json:"agreement"`
		LeftOut  []string      `json:"left_out,omitempty"`
		Unknown  []string      `json:"unknown_settings,omitempty"`
		NoReplay string        `json:"no_replay,omitempty"`
	}{x.moment, x.reason, x.advice, x.measured(), x.settings, x.earlier, x.agreement, x.leftOut, x.unknown, x.noReplay})
	if err != nil {
		return nil, err
	}
	first[len(first)-1] = ',' // the two objects become one
	return append(first, more[1:]...), nil
}

// String describes it in a few lines.
func (x *Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %v", x.moment)
	if x.moment.Asked > 0 {
		fmt.Fprintf(&b, ", when a request of %v failed", x.moment.Asked)
	}
	account, rest, _ := strings.Cut(x.snapshot().String(), "\n")
	fmt.Fprintf(&b, ": %s\n", account)
	if x.reason != nil {
		b.WriteString(x.reason.String())
	}
	if x.advice != "" {
		fmt.Fprintf(&b, "what would help: %s\n", x.advice)
	}
	b.WriteString(rest)
	b.WriteString(x.baseline.describe(len(x.settings) > 0, len(x.earlier) > 0))
	for _, s := range x.settings {
		fmt.Fprintf(&b, "%v\n", s)
	}
	for _, s := range x.earlier {
		fmt.Fprintf(&b, "%v\n", s)
	}
	for _, setting := range x.unknown {
		fmt.Fprintf(&b, "%s\n", unknownNote(setting))
	}
	if x.agreement != nil {
		fmt.Fprintf(&b, "%v\n", x.agreement)
	}
	for _, what := range x.leftOut {
		fmt.Fprintf(&b, "the file lacks %s\n", what)
	}
	if x.noReplay != "" {
		fmt.Fprintf(&b, "what would have helped is unknown: %s\n", x.noReplay)
	}
	return b.String()
}

// snapshot returns what the segments say; nothing of a zero Explanation.
func (x *Explanation) snapshot() *explain.Explanation {
	if x.Explanation == nil {
		return new(explain.Explanation)
	}
	return x.Explanation
}

// measured returns the baseline; nil if nothing was replayed.
func (x *Explanation) measured() *baseline {
	if x.noReplay != "" {
		return nil
	}
	return &x.baseline
}

// describe names the reserved memory that the savings are measured from.
func (m baseline) describe(settings, earlier bool) string {
	var from []string
	if settings {
		from = append(from, fmt.Sprintf("%v", m.Packed))
	}
	if earlier && !(settings && m.Packed == m.Recorded) {
		from = append(from, fmt.Sprintf("%v for what is allocated first", m.Recorded))
	}
	if len(from) == 0 {
		return ""
	}
	failed := ""
	if m.Asked > 0 {
		failed = fmt.Sprintf(", with the %v that failed", m.Asked)
	}
	return fmt.Sprintf("a replay with the recorded settings reserves %s%s; compared with that:\n", strings.Join(from, ", and "), failed)
}

// String says how much the change would have saved, as a replay found.
func (s saving) String() string {
	what := "with " + s.Setting
	if s.Setting == "" {
		what = fmt.Sprintf("had %v at %v been allocated first,", s.Buffers, text.Line(s.Site.String()))
	}
	switch {
	case s.Saved > 0:
		return fmt.Sprintf("%s it would have reserved %v, %v less", what, s.PeakReserved, s.Saved)
	case s.Saved < 0:
		return fmt.Sprintf("%s it would have reserved %v, %v more", what, s.PeakReserved, -s.Saved)
	}
	return fmt.Sprintf("%s it would have reserved as much", what)
}

// Advice says, in a sentence or two, what would have helped a dump that was written because memory ran out: which setting of the
// allocator fits into the memory that could be had, or how much is too much for all of them. If a replay does not do all that
// was recorded, it says how far it does. It takes up to eight replays. It is empty if there was no error, and if the history
// cannot be replayed or does not have the error.
func Advice(r *snapshot.Dump) string {
	advice, agrees := adviceOf(r)
	if advice != "" && agrees != nil && !agrees.complete() {
		advice += fmt.Sprintf(" But %v.", agrees)
	}
	return advice
}

// adviceOf returns the advice, and how far a replay agrees with what was recorded.
func adviceOf(r *snapshot.Dump) (string, *agreement) {
	if r.OOM == nil || r.OOM.Free < 0 || r.OOM.Reserved < 0 {
		return "", nil
	}
	s, _, err := rewind.To(r, "oom")
	if err != nil {
		return "", nil
	}
	p, err := compile(r)
	if err != nil {
		return "", nil
	}
	agrees := p.agreement()
	if !p.endAtError() {
		return "", nil
	}
	advice, err := p.advice(r.OOM.Reserved + r.OOM.Free + s.Registered)
	if err != nil {
		return "", nil
	}
	return advice, agrees
}

// endAtError leaves out what came after the latest error, and the earlier ones: the program went on after those. It reports
// whether there is one.
func (p *program) endAtError() bool {
	last := len(p.ops) - 1
	for last >= 0 && p.ops[last].do != opFailed {
		last--
	}
	if last < 0 {
		return false
	}
	before := slices.DeleteFunc(slices.Clone(p.ops[:last]), func(o op) bool { return o.do == opFailed })
	p.ops = append(before, p.ops[last])
	return true
}

// advice says which settings fit into this much memory.
func (p *program) advice(memory alloc.Bytes) (string, error) {
	recorded := Recorded(p.dump)
	recorded.Memory = memory
	again, err := p.run(recorded)
	if err != nil {
		return "", err
	}
	if again.Fits {
		return "Unknown: a replay with the recorded settings does not run out of memory.", nil
	}
	bare, err := p.run(Config{Allocator: driver})
	if err != nil {
		return "", err
	}
	if missing := bare.PeakReserved + p.foreignPeak() - memory; missing > 0 {
		return fmt.Sprintf("No setting helps: %v too much.%s", missing, p.holder()), nil
	}
	fitting, err := p.fitting(recorded)
	if err != nil {
		return "", err
	}
	if len(fitting) == 0 {
		return fmt.Sprintf("What is needed at once, %v, would fit, but in none of the settings that were replayed: the free memory is in pieces.%s",
			bare.PeakReserved+p.foreignPeak(), p.holder()), nil
	}
	return fitting[0].String(), nil
}

// fit is a setting with which a history fits, and the most memory that it then reserves.
type fit struct {
	setting  string
	reserved alloc.Bytes
}

// String says it: "expandable_segments:True fits, with 52.8 GiB."
func (f fit) String() string { return fmt.Sprintf("%s fits, with %v.", f.setting, f.reserved) }

// fitting replays the settings that are worth a try in the memory of a Config, and returns those that fit, least reserved
// memory first.
func (p *program) fitting(in Config) (fits []fit, err error) {
	for _, setting := range candidates {
		conf, err := cache.ParseConfig(setting)
		if err != nil {
			return nil, err
		}
		cfg, err := Config{Memory: in.Memory, Conf: conf}.check()
		if err != nil {
			return nil, err
		}
		if sameSettings(cfg, in) {
			continue
		}
		result, err := p.run(cfg)
		if err != nil {
			return nil, err
		}
		if result.Fits {
			fits = append(fits, fit{cmp.Or(setting, "the default setting"), result.PeakReserved})
		}
	}
	slices.SortStableFunc(fits, func(a, b fit) int { return cmp.Compare(a.reserved, b.reserved) })
	return fits, nil
}

// holder names what has most memory: the line of code, or what is outside of the tracker if that has more.
func (p *program) holder() string {
	oom := p.dump.OOM
	outside := oom.Untracked
	if oom.Others >= 0 {
		outside = oom.Others
	}
	sites := oom.CallSites
	if len(sites) == 0 || sites[0].Frame == (mem.Frame{}) || sites[0].Bytes <= outside {
		if outside > 0 && (len(sites) == 0 || sites[0].Bytes <= outside) {
			return fmt.Sprintf(" %v of the device are in use outside of this tracker.", outside)
		}
		return ""
	}
	return fmt.Sprintf(" %s holds %v.", text.Line(sites[0].Frame.String()), sites[0].Bytes)
}

package replay

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// Advice says, in a sentence or two, what would have helped a dump that was written because memory ran out: which setting of the
// allocator fits into the memory that could be had, or how much is too much for all of them. If a replay does not do all that
// was recorded, it says how far it does. It takes up to eight replays. It is empty if there was no error, and if the history
// cannot be replayed or does not have the error.
func Advice(r *snapshot.Dump) string {
	advice, agrees := adviceOf(r)
	if advice != "" && agrees != nil && !agrees.whole() {
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
	for last >= 0 && p.ops[last].do != opTry {
		last--
	}
	if last < 0 {
		return false
	}
	before := slices.DeleteFunc(slices.Clone(p.ops[:last]), func(o op) bool { return o.do == opTry })
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
	for _, setting := range tried {
		conf, err := cache.ParseConfig(setting)
		if err != nil {
			return nil, err
		}
		cfg, err := Config{Memory: in.Memory, Conf: conf}.check()
		if err != nil {
			return nil, err
		}
		if cfg.Conf.ExpandableSegments = cfg.Allocator == expandable; sameSettings(cfg, in) {
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

// holder names the line of code with the most memory.
func (p *program) holder() string {
	sites := p.dump.OOM.CallSites
	if len(sites) == 0 || sites[0].Frame == (mem.Frame{}) {
		return ""
	}
	return fmt.Sprintf(" %s holds %v.", text.Line(sites[0].Frame.String()), sites[0].Bytes)
}

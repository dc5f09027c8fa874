package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Run replays a dump's history. If the dump has several devices, it replays the first; the others
// are in Dump.Others. A replay takes some hundred nanoseconds for each event. Run may be called
// from any goroutine.
//
// The errors say that there is no history or that cfg is not valid, or are those of rewind.At. A
// history that does not fit is not an error: see Result.Fits.
func Run(r *snapshot.Dump, cfg Config) (Result, error) { return replayed(r, cfg, (*program).run) }

// replayed runs a dump's history, and says how far a replay agrees with what was recorded.
func replayed(r *snapshot.Dump, cfg Config, run func(*program, Config) (Result, error)) (Result, error) {
	cfg, err := cfg.check()
	if err != nil {
		return Result{}, err
	}
	p, err := compile(r)
	if err != nil {
		return Result{}, err
	}
	result, err := run(p, cfg)
	result.agreement = p.agreement()
	return result, err
}

func (p *program) run(cfg Config) (Result, error) {
	m, err := newMachine(p, cfg)
	if err != nil {
		return Result{}, err
	}
	oom, err := m.run()
	if err != nil {
		return Result{}, err
	}
	s := p.dump.Snapshot
	result := Result{
		Allocator: cfg.Allocator, Memory: cfg.Memory, Events: p.events, Fits: oom == nil, Levels: m.levels, Recorded: p.recorded,
		oom: oom, device: s.Device, ordinal: s.Ordinal, gap: p.gap, unknown: p.unknownSettings(),
		start: start{
			Dropped: p.first, Buffers: p.begun, Requested: p.start.Live.Bytes, Reserved: p.start.Reserved, Layout: m.layout,
		},
	}
	result.PeakReserved, result.DriverAllocs, result.DriverFrees = m.dev.peak, m.dev.allocs, m.dev.frees
	if oom != nil {
		result.OOMs = 1
	}
	if p.first > 0 && s.Peak.Bytes > p.recorded.PeakRequested {
		result.start.EarlierPeak = s.Peak.Bytes
	}
	return result, nil
}

// agreement replays the recorded allocator without a limit of memory: requests fail and caches are emptied
// where they were when it was recorded. It is nil if the history has no calls to compare with, or if the
// recorded allocator cannot be replayed.
func (p *program) agreement() *agreement {
	cfg := Recorded(p.dump)
	if cfg.Allocator == driver {
		return nil
	}
	m, err := newMachine(p, cfg)
	if err != nil {
		return nil
	}
	m.compareWithRecorded()
	if oom, err := m.run(); oom != nil || err != nil {
		return nil
	}
	m.compared.compare()
	a := m.compared.agreement
	a.PeakReserved, a.RecordedPeakReserved = m.dev.peak, p.recorded.PeakReserved
	if a.RecordedCalls+a.RecordedAddresses == 0 {
		return nil
	}
	return &a
}

// maxReplays bounds a search.
const maxReplays = 20

// Smallest returns the result of the replay with the least memory on which the history
// fits, found in at most 20 replays: Result.Memory says how much. cfg.Memory does not count. The
// errors are those of Run.
//
// The search halves the range between the peak of allocated bytes and what the allocator takes
// without a limit, down to 2 MiB, or to a 2^18th of a very long range. An allocator may fit into
// less memory and yet fail with a little more, because it then decides differently. What Smallest
// returns did fit.
func Smallest(r *snapshot.Dump, cfg Config) (Result, error) {
	return replayed(r, cfg, (*program).smallest)
}

func (p *program) smallest(cfg Config) (Result, error) {
	cfg.Memory = 0
	best, err := p.run(cfg)
	if err != nil || !best.Fits {
		return best, err
	}
	const step = granularity // which segments are multiples of
	high := best.PeakReserved + p.foreignPeak()
	low := best.PeakAllocated / step * step // nothing fits into less than what is in blocks
	unit := max(step, roundUp((high-low)>>18, step))
	best.replays = 1
	from, to := alloc.Bytes(0), (high-low+unit-1)/unit // in units above low; the history fits at to
	found := high
	for replays := 2; from < to && replays <= maxReplays; replays++ {
		middle := (from + to) / 2
		cfg.Memory = max(low+middle*unit, 1)
		result, err := p.run(cfg)
		if err != nil {
			return Result{}, err
		}
		if result.Fits {
			best, found, to = result, cfg.Memory, middle
		} else {
			from = middle + 1
		}
		best.replays = replays
	}
	best.Memory = found
	return best, nil
}

// roundUp returns the smallest multiple of unit that is not below n.
func roundUp[T alloc.Bytes | alloc.Ptr](n, unit T) T { return (n + unit - 1) / unit * unit }

const (
	caching    = "cache"
	expandable = "expandable"
	driver     = "driver"
)

// Allocators returns the kinds of allocators: "cache" is cache.Cache, with PyTorch's rules; "expandable" is
// the same with expandable segments; with "driver", each request is the driver's, rounded up to 512 bytes.
func Allocators() []string { return []string{caching, expandable, driver} }

// Config says on what a history is replayed.
type Config struct {
	// Memory is what the allocator and registered buffers can have: a device's memory, without
	// contexts and other processes. 0 means without limit.
	Memory alloc.Bytes
	// Allocator is one of Allocators, "cache" if it is empty.
	Allocator string
	// Conf are the settings of "cache" and "expandable". ExpandableSegments means "expandable".
	Conf cache.Config

	// packed allocates the buffers that were live before the first event one after the other, even
	// where their recorded segments could be made. Allocators then start alike, and can be compared.
	packed bool
}

// Where a snapshot has the settings of PyTorch's allocator.
const (
	settingsKey      = "PYTORCH_CUDA_ALLOC_CONF"
	laterSettingsKey = "PYTORCH_ALLOC_CONF"
)

// check completes a Config.
func (c Config) check() (Config, error) {
	switch {
	case c.Allocator == "":
		c.Allocator = caching
	case !slices.Contains(Allocators(), c.Allocator):
		return c, fmt.Errorf("replay: allocator %q: want one of %v", c.Allocator, Allocators())
	}
	if c.Allocator == caching && c.Conf.ExpandableSegments {
		c.Allocator = expandable
	}
	if c.Memory < 0 {
		return c, fmt.Errorf("replay: memory of %d bytes: want more than 0, or 0 for no limit", int64(c.Memory))
	}
	return c, nil
}

// The layouts: where the buffers that were live before the first event are placed.
const (
	layoutEmpty    = "empty"       // there were none, nor any segment
	layoutRecorded = "as recorded" // in the recorded segments, gaps included
	layoutPacked   = "packed"      // allocated one after the other, in recorded order
)

// Recorded returns the Config of the allocator that made a dump, without a limit of memory. It is
// "driver" if the dump has neither a cache nor segments, and is not of PyTorch; damaged segments count. Settings that
// cache.ParseConfig refuses, such as those of a later PyTorch, are left out, and the notes of a
// Result name them.
func Recorded(r *snapshot.Dump) Config {
	conf, _ := recordedSettings(r)
	broken := tables.Of(&r.Snapshot.Tables).LeftOut.Broken > 0
	cached := r.Snapshot.Cache != nil || r.Snapshot.Settings[walk.AllocatorSetting] == walk.PyTorchAllocator
	if !cached && len(r.Snapshot.Segments) == 0 && !broken && !walk.BeginningOf(r).Segments {
		return Config{Allocator: driver}
	}
	cfg := Config{Allocator: caching, Conf: conf}
	for _, s := range r.Snapshot.Segments {
		conf.ExpandableSegments = conf.ExpandableSegments || s.Expandable
	}
	if conf.ExpandableSegments {
		cfg.Allocator = expandable
	}
	return cfg
}

// recordedSettings returns the settings of the recorded allocator, and those that are not known.
func recordedSettings(r *snapshot.Dump) (conf cache.Config, unknown []string) {
	recorded := cmp.Or(r.Snapshot.Settings[settingsKey], r.Snapshot.Settings[laterSettingsKey])
	if conf, err := cache.ParseConfig(recorded); err == nil {
		return conf, nil
	}
	good := ""
	for _, setting := range settingsIn(recorded) {
		with := setting
		if good != "" {
			with = good + "," + setting
		}
		if parsed, err := cache.ParseConfig(with); err == nil {
			good, conf = with, parsed
		} else {
			unknown = append(unknown, setting)
		}
	}
	return conf, unknown
}

// unknownSettings are the recorded ones that are left out.
func (p *program) unknownSettings() []string {
	_, unknown := recordedSettings(p.dump)
	return unknown
}

// settingsIn cuts settings at their commas, except for those in brackets.
func settingsIn(s string) (out []string) {
	depth, from := 0, 0
	for i, c := range s {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth <= 0:
			out, from = append(out, s[from:i]), i+1
		}
	}
	return slices.DeleteFunc(append(out, s[from:]), func(setting string) bool { return strings.TrimSpace(setting) == "" })
}

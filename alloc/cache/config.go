package cache

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Config has the settings of a Cache. The zero Config is PyTorch's default, and works well for most
// programs.
//
// Its fields are settings of PyTorch's allocator, and do what they do
// there; ParseConfig reads them from a string, and some that are seldom set. The default, and
// ExpandableSegments, were compared with recordings from real GPUs: each request had
// the recorded address, each call to the driver came at the recorded request. No
// recording shows the others at work. They follow c10/cuda/CUDACachingAllocator.cpp.
type Config struct {
	// ExpandableSegments takes memory from the driver in chunks (2 MiB for small requests, 20 MiB
	// for large ones) and maps them one behind the other. So one segment grows in place, instead of
	// many segments that cannot be joined. Trim gives back each chunk in which nothing is
	// allocated. The device needs virtual memory (see alloc.Device); on other devices this is
	// ignored, as in PyTorch.
	ExpandableSegments bool

	// MaxSplitSize, if not 0, keeps blocks of that size and more whole. They serve only requests of
	// that size and more, and only if less than MaxNonSplitRounding of the block stays unused. The
	// smallest value is 20 MiB, the size of the segments for large blocks.
	MaxSplitSize alloc.Bytes
	// MaxNonSplitRounding of 0 is 20 MiB, or the size of large segments if that is more.
	MaxNonSplitRounding alloc.Bytes

	// largeSegmentSize is the size of the segments for requests above 1 MiB and below 10 MiB, and of the chunks
	// of an expandable segment for large requests: more than 10 MiB; 0 means 20 MiB.
	largeSegmentSize alloc.Bytes

	// reserve is the size of an expandable segment's address range, in bytes;
	// reserveFraction gives it as a part of the device's memory. The default, and the
	// most, is 9/8 of the device's memory. A larger request is out of memory.
	reserve         alloc.Bytes
	reserveFraction float64

	// Roundup rounds requests up to parts of a power of two, so that requests of similar size can
	// reuse each other's blocks. For each range of sizes it gives the number of parts, itself a
	// power of two, between one power of two and the next. 0 and 1 round only to 512 bytes. The
	// first range ends below 2 MiB; each further range begins where the one before it ends and is
	// twice as wide; the last has no end.
	Roundup [16]int

	// MemoryFraction, if not 0, is the part of the device's memory that the cache may reserve, at
	// most 1. A request that needs more is out of memory.
	MemoryFraction float64
	// GarbageCollection, if not 0, is a part, below 1, of the memory that MemoryFraction allows.
	// When the cache has reserved more than this, it first gives back free large segments that were
	// not used for long, before it asks the driver for more. Without MemoryFraction it does
	// nothing, as in PyTorch.
	GarbageCollection float64
}

// largeSegment is the size of the segments for large blocks.
func (c Config) largeSegment() alloc.Bytes { return cmp.Or(c.largeSegmentSize, largeSegment) }

// maxLargeSegment bounds the size of large segments: no program is helped by more.
const maxLargeSegment = 1 * alloc.TiB

// check returns what is wrong with the settings.
func (c Config) check() error {
	for i, divisions := range c.Roundup {
		if divisions < 0 || divisions&(divisions-1) != 0 {
			return fmt.Errorf("roundup_power2_divisions %d of range %d: want a power of two, or 0", divisions, i)
		}
	}
	switch {
	case c.largeSegmentSize != 0 && (c.largeSegmentSize <= largeLimit || c.largeSegmentSize%alloc.MiB != 0 || c.largeSegmentSize > maxLargeSegment):
		return fmt.Errorf("large_segment_size_mb %v: want whole MiB, more than %v and at most %v", c.largeSegmentSize, largeLimit, maxLargeSegment)
	case c.reserve < 0 || !(c.reserveFraction >= 0):
		return fmt.Errorf("expandable_segments_reserve %v and %v: want a size or a part of the memory, above 0", c.reserve, c.reserveFraction)
	case c.MaxSplitSize != 0 && c.MaxSplitSize < c.largeSegment():
		return fmt.Errorf("max_split_size_mb %v: want at least %v", c.MaxSplitSize, c.largeSegment())
	case c.MaxNonSplitRounding != 0 && c.MaxNonSplitRounding < c.largeSegment():
		return fmt.Errorf("max_non_split_rounding_mb %v: want at least %v", c.MaxNonSplitRounding, c.largeSegment())
	case !(c.GarbageCollection >= 0 && c.GarbageCollection < 1):
		return fmt.Errorf("garbage_collection_threshold %v: want more than 0 and less than 1", c.GarbageCollection)
	case !(c.MemoryFraction >= 0 && c.MemoryFraction <= 1):
		return fmt.Errorf("per_process_memory_fraction %v: want more than 0, at most 1", c.MemoryFraction)
	}
	return nil
}

// ParseConfig reads settings in the syntax of PYTORCH_CUDA_ALLOC_CONF:
//
//	expandable_segments:True,max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:8]
//
// The keys are expandable_segments, expandable_segments_reserve, large_segment_size_mb,
// max_split_size_mb, max_non_split_rounding_mb, roundup_power2_divisions,
// garbage_collection_threshold, per_process_memory_fraction, and backend, which must be native.
// throw_on_cudamalloc_oom changes nothing here: a Cache refuses what is beyond MemoryFraction
// without asking the driver. expandable_segments_reserve_by_class is ignored, as a program says
// which streams are of a class, and so are keys that concern only locks, graphs or host memory:
// their names begin with pinned_, release_lock_ or graph_capture_. Any other key is an error, as in
// PyTorch, and so are values that PyTorch refuses. If a key comes twice, the last one counts.
func ParseConfig(s string) (Config, error) {
	p := configParser{tokens: configTokens(s)}
	for len(p.tokens) > 0 && p.err == nil {
		key := p.take()
		p.expect(":")
		p.setting(key)
		if len(p.tokens) > 0 {
			p.expect(",")
		}
	}
	if p.err == nil {
		p.err = p.config.check()
	}
	if p.err != nil {
		return Config{}, fmt.Errorf("parse allocator settings %q: %w", s, p.err)
	}
	return p.config, nil
}

// configTokens splits a string at the four separators. The separators are tokens too.
func configTokens(s string) []string {
	s = strings.ReplaceAll(s, " ", "")
	var tokens []string
	for s != "" {
		end := strings.IndexAny(s, ",:[]")
		switch end {
		case -1:
			end = len(s)
		case 0:
			end = 1
		}
		tokens = append(tokens, s[:end])
		s = s[end:]
	}
	return tokens
}

// configParser holds what is left to parse, and the first error.
type configParser struct {
	tokens []string
	config Config
	err    error
}

func (p *configParser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

func (p *configParser) take() string {
	if len(p.tokens) == 0 {
		p.fail("it ends too soon")
		return ""
	}
	token := p.tokens[0]
	p.tokens = p.tokens[1:]
	return token
}

func (p *configParser) expect(token string) {
	if got := p.take(); got != token {
		p.fail("%q where %q is wanted", got, token)
	}
}

func (p *configParser) setting(key string) {
	c := &p.config
	switch key {
	case "expandable_segments":
		c.ExpandableSegments = p.bool(key)
	case "expandable_segments_reserve":
		p.reserve(key)
	case "expandable_segments_reserve_by_class":
		p.skipList()
	case "throw_on_cudamalloc_oom":
		p.bool(key)
	case "large_segment_size_mb":
		c.largeSegmentSize = p.mebibytes(key)
	case "max_split_size_mb":
		c.MaxSplitSize = p.mebibytes(key)
	case "max_non_split_rounding_mb":
		c.MaxNonSplitRounding = p.mebibytes(key)
	case "garbage_collection_threshold":
		c.GarbageCollection = p.fraction(key)
	case "per_process_memory_fraction":
		c.MemoryFraction = p.fraction(key)
	case "roundup_power2_divisions":
		p.divisions(key)
	case "backend":
		if backend := p.take(); backend != "native" {
			p.fail("backend %q: want native, the only one here", backend)
		}
	default:
		for _, prefix := range []string{"pinned_", "release_lock_", "graph_capture_"} {
			if strings.HasPrefix(key, prefix) {
				p.take()
				return
			}
		}
		p.fail("unknown key %q", key)
	}
}

func (p *configParser) bool(key string) bool {
	value := p.take()
	if value != "True" && value != "False" {
		p.fail("%s %q: want True or False", key, value)
	}
	return value == "True"
}

// reserve reads a part of the memory, "0.5", or a number of GiB, "40G".
func (p *configParser) reserve(key string) {
	value := p.take()
	number, gibibytes := strings.CutSuffix(value, "G")
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !(f > 0) || math.IsInf(f, 0) {
		p.fail("%s %q: want a part of the memory, such as 0.5, or a size, such as 40G", key, value)
		return
	}
	c := &p.config
	if c.reserve, c.reserveFraction = 0, f; gibibytes {
		c.reserve, c.reserveFraction = alloc.Bytes(min(f, 1<<20)*float64(alloc.GiB)), 0
	}
}

// skipList passes over a list in brackets.
func (p *configParser) skipList() {
	p.expect("[")
	for p.err == nil && p.take() != "]" {
	}
}

func (p *configParser) mebibytes(key string) alloc.Bytes {
	n := p.number(key)
	if n == 0 {
		p.fail("%s 0: want at least %d", key, p.config.largeSegment()/alloc.MiB)
	}
	return alloc.Bytes(min(n, uint64(math.MaxInt64/alloc.MiB))) * alloc.MiB
}

func (p *configParser) number(key string) uint64 {
	value := p.take()
	n, err := strconv.ParseUint(value, 10, 63)
	if err != nil {
		p.fail("%s %q: want a whole number", key, value)
	}
	return n
}

func (p *configParser) fraction(key string) float64 {
	value := p.take()
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || !(f > 0) {
		p.fail("%s %q: want a number above 0", key, value)
	}
	return f
}

// divisions reads one number for all ranges, or a list of "MiB:number".
func (p *configParser) divisions(key string) {
	all := &p.config.Roundup
	if len(p.tokens) > 0 && p.tokens[0] == "[" {
		p.take()
		p.divisionList(key, all)
		return
	}
	n := p.division(key)
	if n == 0 {
		p.fail("%s 0: want a power of two", key)
	}
	for i := range all {
		all[i] = n
	}
}

// divisionList reads a list after its opening bracket. The first number also applies to all smaller
// ranges. The number after ">" applies from the range of the entry before it on.
func (p *configParser) divisionList(key string, all *[16]int) {
	for from, last := 0, 0; p.err == nil && len(p.tokens) > 0 && p.tokens[0] != "]"; from = last + 1 {
		if p.tokens[0] == ">" {
			p.take()
			from, last = last, len(all)-1
		} else if at := p.divisionRange(key); from == 0 {
			last = at
		} else {
			from, last = at, at
		}
		p.expect(":")
		n := p.division(key)
		for i := from; i <= last; i++ {
			all[i] = n
		}
		if len(p.tokens) > 0 && p.tokens[0] != "]" {
			p.expect(",")
		}
	}
	p.expect("]")
}

// divisionRange reads the size at which a range begins, and returns its index.
func (p *configParser) divisionRange(key string) int {
	size := p.number(key)
	if bits.OnesCount64(size) != 1 {
		p.fail("%s: a range of %d MiB: want a power of two", key, size)
	}
	return min(max(bits.Len64(size)-1, 0), len(p.config.Roundup)-1)
}

func (p *configParser) division(key string) int {
	n := p.number(key)
	if n&(n-1) != 0 || n > 1<<30 {
		p.fail("%s %d: want a power of two", key, n)
	}
	return int(n)
}

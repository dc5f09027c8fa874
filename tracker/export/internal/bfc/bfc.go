// Package bfc reads what the allocators of TensorFlow, XLA (JAX) and ONNX Runtime print when memory
// runs out: every chunk of their pool, in a log among the program's other output. All three use the
// same scheme, best fit with coalescing, but their text has changed every few releases.
//
// A log has no call stacks. It says what was requested, and which chunks are in use or free at
// which addresses. So a [Failure] can tell why a request failed: too little memory was free, or it
// was free in pieces, and then what lies between them. What a log lacks, for example because it was
// cut, stays unknown and is named.
package bfc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// ErrNoFailure is returned for a text in which no BFC allocator says that it ran out of memory.
var ErrNoFailure = errors.New("no BFC allocator says in it that it ran out of memory")

// Read finds the failures in a log, packed by gzip or not. Lines of the log may have anything
// before them: times, levels, a progress bar, quotes of a notebook. The dump shows the first
// failure that lists chunks, with the chunks in use as its buffers; it is nil if none does. The
// usage is what was in use at that failure or, if none lists chunks, at the first. The error is
// ErrNoFailure, or says that the file is torn or too large.
func Read(r io.Reader) ([]*Failure, *snapshot.Dump, *export.Usage, error) {
	failures, err := read(r)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, f := range failures {
		if len(f.chunks) > 0 {
			d := f.dump()
			return failures, d, export.FromDump(d), nil
		}
	}
	return failures, nil, failures[0].usage(), nil
}

func read(r io.Reader) ([]*Failure, error) {
	in, err := bounded.NewReader(r, 0)
	if err != nil {
		return nil, err
	}
	s := scanner{use: in.Use}
	lines := lineReader{r: bufio.NewReaderSize(in, 1<<16)}
	for err == nil {
		var line string
		if line, err = lines.next(); line != "" {
			s.number = lines.number
			if err := s.line(line); err != nil {
				return nil, fmt.Errorf("read log: %w", err)
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read log: %w", bounded.Torn(err))
	}
	s.end()
	if len(s.failures) == 0 {
		s.failures = s.arenas.grown()
	}
	if len(s.failures) == 0 && s.warnings > 0 {
		return nil, fmt.Errorf("%w: of its %d warnings each says that it is no failure", ErrNoFailure, s.warnings)
	}
	if len(s.failures) == 0 && s.survived > 0 {
		return nil, fmt.Errorf("%w: %d allocations of a memory pattern failed, which the program did without", ErrNoFailure, s.survived)
	}
	if len(s.failures) == 0 {
		return nil, ErrNoFailure
	}
	return s.failures, nil
}

// maxLine is how much of a line is looked at.
const maxLine = 1 << 14

// lineReader reads the lines of a log. A progress bar goes back to the beginning of its line and writes over it: what
// follows is read apart.
type lineReader struct {
	r      *bufio.Reader
	number int // number of the line read last
	ended  bool
	text   []byte
}

// next returns the next piece of a line, "" of an empty one, with the error after it.
func (l *lineReader) next() (string, error) {
	if l.ended || l.number == 0 {
		l.number, l.ended = l.number+1, false
	}
	for l.text = l.text[:0]; ; {
		c, err := l.r.ReadByte()
		if err != nil || c == '\r' || c == '\n' {
			l.ended = c == '\n'
			return string(l.text), err
		}
		if len(l.text) < maxLine {
			l.text = append(l.text, c)
		}
	}
}

// scanner goes through the lines of a log.
type scanner struct {
	use      func(bytes int64) error
	number   int // number of the line
	failures []*Failure
	now      *Failure // that the lines belong to; nil before the first
	arenas   arenas   // of ONNX Runtime
	warnings int      // that say that they are no failures
	survived int      // failed allocations that the program did without
	bins     map[string]bool
	items    int // read so far, of all failures
}

// begin begins a dump.
func (s *scanner) begin() *Failure {
	s.end()
	s.items += failureItems
	s.now = newFailure(s.number)
	s.bins = make(map[string]bool)
	return s.now
}

// end ends the dump that is being read.
func (s *scanner) end() {
	if s.now != nil {
		s.failures = append(s.failures, s.now)
	}
	s.now = nil
}

// dump returns the failure that is being read. A log that was cut may begin in the middle of one.
func (s *scanner) dump() *Failure {
	if s.now == nil {
		return s.begin()
	}
	return s.now
}

// maxItems bounds the chunks, regions and sizes of a log: a pool has some thousands.
const (
	maxItems     = 1 << 20
	failureItems = 16 // that a failure counts for
)

// count adds a decoded item that takes so many bytes of memory.
func (s *scanner) count(bytes int64) error {
	if s.items++; s.items > maxItems {
		return fmt.Errorf("%w: the log has more than %d chunks", bounded.ErrTooLarge, maxItems)
	}
	return s.use(bytes)
}

// line reads a line. Those of the program's other output are passed over.
func (s *scanner) line(line string) error {
	line = strings.TrimRight(line, " \t")
	line = strings.TrimSuffix(strings.TrimSuffix(line, `",`), `"`) // quotes of a notebook
	line = strings.ReplaceAll(strings.TrimSuffix(line, `\n`), `\t`, "\t")
	if !strings.Contains(line, "bfc_") {
		s.outside(line)
		return nil
	}
	if c, ok := parseChunk(line); ok {
		if err := s.count(chunkBytes); err != nil {
			return err
		}
		d := s.dump()
		c.region = len(d.regions)
		d.chunks = append(d.chunks, c)
		return nil
	}
	return s.head(line)
}

// chunkBytes is the memory that a chunk takes, including the snapshot made from it.
const chunkBytes = 512

// head reads a line that is not a chunk's.
func (s *scanner) head(line string) error {
	if s.failure(line) || s.arenaLine(line) {
		return s.count(chunkBytes)
	}
	if name, ok := after(line, "BFCAllocator dump for "); ok {
		if d := s.dump(); d.allocator == "" {
			d.allocator = bounded.Name(name)
		}
		return nil
	}
	if bin, ok := after(line, "Bin ("); ok && strings.Contains(bin, "Total Chunks:") {
		size, _, _ := strings.Cut(bin, ")")
		if s.now == nil || s.bins[size] {
			s.begin()
		}
		if len(s.bins) < 1<<10 {
			s.bins[size] = true
		}
		return nil
	}
	if n, ok := numberAfter(line, "Next region of size "); ok && n <= maxChunk {
		d := s.dump()
		d.regions = append(d.regions, n)
		return s.count(chunkBytes)
	}
	if s.sizes(line) {
		return s.count(chunkBytes)
	}
	for _, words := range []string{"total_region_allocated_bytes_: ", "Total bytes in pool: "} {
		if n, ok := numberAfter(line, words); ok {
			d := s.dump()
			d.pool = n
			if limit, ok := numberAfter(line, "memory_limit_: "); ok {
				d.limit = limit
			}
			if left, ok := numberAfter(line, "available bytes: "); ok {
				d.available = left
			}
		}
	}
	if m := line[strings.LastIndexByte(line, ' ')+1:]; len(m) == mapWidth && strings.Trim(m, "*x_") == "" {
		s.dump().occupancy = m
	}
	return nil
}

const mapWidth = 100

// failure reads a line that says that memory ran out. It begins a dump; in the logs of the first
// releases it ends one.
func (s *scanner) failure(line string) bool {
	if strings.Contains(line, "is not a failure") {
		s.warnings++
		return true
	}
	if rest, ok := after(line, "Ran out of memory trying to allocate "); ok {
		d := s.dump()
		d.words = strings.TrimSuffix(firstWord(rest), ".")
		return true
	}
	if s.arenaFailure(line) {
		return true
	}
	before, rest, ok := strings.Cut(line, " ran out of memory trying to allocate ")
	if !ok {
		return false
	}
	d := s.begin()
	if name, ok := after(before, "Allocator ("); ok {
		d.allocator = bounded.Name(strings.TrimSuffix(name, ")"))
	}
	d.words = strings.TrimSuffix(firstWord(rest), ".")
	if n, ok := numberAfter(rest, "(rounded to "); ok {
		d.requested = n
	}
	if op, ok := after(rest, "requested by op "); ok {
		d.operation = bounded.Name(strings.TrimSpace(op))
	}
	return true
}

// sizes reads a line of the summary: how many chunks of a size are in use.
func (s *scanner) sizes(line string) bool {
	for _, words := range []string{" Chunks of size ", " chunks of size "} {
		before, rest, ok := strings.Cut(line, words)
		if !ok {
			continue
		}
		count, err := strconv.ParseInt(before[strings.LastIndexByte(before, ' ')+1:], 10, 64)
		size, known := leadingNumber(rest)
		if err == nil && known && count > 0 && size > 0 && count <= int64(maxChunk/size) {
			s.dump().bySize[size] = count
		}
		return true
	}
	return false
}

// arenaLine reads what ONNX Runtime says of an arena.
func (s *scanner) arenaLine(line string) bool {
	if !strings.Contains(line, "bfc_arena") {
		return false
	}
	if s.arenas.line(s.number, line) {
		return true
	}
	if name, ok := after(line, "Allocator:"); ok {
		s.dump().allocator = bounded.Name(strings.TrimSpace(name))
		return true
	}
	return false
}

// arenaFailure reads a line that says that an arena of ONNX Runtime had no memory for a request. The executor logs what
// the exception says again: that is one failure. Without the buffer of a memory pattern the program goes on.
func (s *scanner) arenaFailure(line string) bool {
	for _, words := range []string{"BFC Arena ran out of memory trying to allocate ", "Failed to allocate memory for requested buffer of size ", "is smaller than requested bytes of "} {
		n, ok := numberAfter(line, words)
		if !ok {
			continue
		}
		left, limited := numberAfter(line, "Available memory of ")
		if !limited {
			left = -1
		}
		if strings.Contains(line, "Allocation of memory pattern buffer for ") {
			s.survived++
			return true
		}
		byExecutor := strings.Contains(line, "[E:onnxruntime")
		if d := s.now; d != nil && d.byExecutor && !byExecutor && d.requested == n && d.available == left {
			return true
		}
		d := s.begin()
		d.requested, d.available, d.byExecutor = n, left, byExecutor
		if node, ok := after(line, "returned while running "); ok {
			d.operation = bounded.Name(firstWord(node))
		}
		s.arenas.of(left).describe(d)
		return true
	}
	return false
}

// outside reads a line that names no source file of the allocator: the statistics, and what XLA prints of the
// failure.
func (s *scanner) outside(line string) {
	if n, ok := numberAfter(line, "Out of memory while trying to allocate "); ok && s.now != nil {
		if s.now.requested < 0 {
			s.now.requested = (min(n, 1<<62) + chunkUnit - 1) / chunkUnit * chunkUnit
		}
		return
	}
	if s.now != nil && s.peakBuffer(line) {
		return
	}
	key, value, ok := strings.Cut(strings.TrimLeft(line, " \t#|"), ":")
	if !ok {
		return
	}
	n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	if err != nil || n < 0 {
		return
	}
	switch key {
	case "Limit":
		s.dump().limit = alloc.Bytes(n)
	case "InUse":
		s.dump().inUse = alloc.Bytes(n)
	}
}

// maxChunk is the largest size that a chunk may have: more than any device has, and so little that all chunks of a log
// can be added up.
const maxChunk = 1 << 42

// chunkUnit divides the size of every chunk.
const chunkUnit = 256

// peakBuffer reads a line of the buffers that XLA lists when a compiled program does not fit.
func (s *scanner) peakBuffer(line string) bool {
	const most = 1 << 10
	line = strings.TrimSpace(line)
	peak := &s.now.peak
	if strings.HasPrefix(line, "Buffer ") && strings.HasSuffix(line, ":") && len(*peak) < most {
		*peak = append(*peak, peakBuffer{})
		return true
	}
	if len(*peak) == 0 {
		return false
	}
	b := &(*peak)[len(*peak)-1]
	if size, ok := strings.CutPrefix(line, "Size: "); ok {
		b.Size = bounded.Name(size)
		return true
	}
	if shape, ok := strings.CutPrefix(line, "Shape: "); ok {
		b.Shape = bounded.Name(shape)
		return true
	}
	if op, ok := strings.CutPrefix(line, "Operator: "); ok {
		b.Operation, b.File = quotedAfter(op, "op_name="), quotedAfter(op, "source_file=")
		n, _ := numberAfter(op, "source_line=")
		b.Line = int(min(n, 1<<30))
		return true
	}
	return false
}

// parseChunk reads a chunk in any of its forms: "InUse at 7bc12a000000 of size 562273024 next 207",
// "Free  at 0x7f94a939ca00 next 3 of size 917504", and with an operation's name in newer ones.
func parseChunk(line string) (c chunk, ok bool) {
	at := -1
	for _, state := range []struct {
		words string
		used  bool
	}{{"InUse at ", true}, {"Chunk at ", true}, {"Free at ", false}, {"Free  at ", false}} {
		if i := strings.Index(line, state.words); i >= 0 {
			at, c.used = i+len(state.words), state.used
			break
		}
	}
	if at < 0 {
		return c, false
	}
	rest := line[at:]
	address := strings.TrimPrefix(firstWord(rest), "0x")
	p, err := strconv.ParseUint(address, 16, 64)
	size, known := numberAfter(rest, " of size ")
	if err != nil || !known || size <= 0 || size > maxChunk || p > 1<<62 {
		return c, false
	}
	c.ptr, c.size = alloc.Ptr(p), size
	for _, name := range []string{" allocation_annotation ", " by op ", " tag "} {
		if text, found := after(rest, name); found && c.name == "" {
			for _, end := range []string{" allocation_annotation ", " by op ", " action_count ", " next ", " freed_at_count "} {
				text, _, _ = strings.Cut(text, end)
			}
			c.name = bounded.Name(strings.TrimSpace(text))
		}
	}
	return c, true
}

// after returns what follows the words in a line.
func after(line, words string) (string, bool) {
	_, rest, ok := strings.Cut(line, words)
	return rest, ok
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

func numberAfter(line, words string) (alloc.Bytes, bool) {
	rest, ok := after(line, words)
	if !ok {
		return 0, false
	}
	return leadingNumber(rest)
}

// leadingNumber is the number that a text begins with.
func leadingNumber(s string) (alloc.Bytes, bool) {
	end := 0
	for end < len(s) && '0' <= s[end] && s[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(s[:end], 10, 64)
	return alloc.Bytes(n), err == nil
}

func quotedAfter(line, words string) string {
	rest, _ := after(line, words+`"`)
	text, _, _ := strings.Cut(rest, `"`)
	return bounded.Name(text)
}

package xladump

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// parser gathers what the lines of the texts say. Each line tells by itself what it is, but for the tables of files and the
// list of what is live.
type parser struct {
	use         func(bytes int64) error
	module      string
	total       *alloc.Bytes // of the program
	spaces      *alloc.Bytes // of its memory spaces together
	allocations []Allocation
	rounded     []Allocation // as a memory report prints them
	values      map[string]value
	live        []liveValue
	atPeak      bool // the lines are those of what is live at the peak
	names       bool // the lines are those of the names of files

	instructions map[string]instruction
	files        map[int64]string
	locations    map[int64]location
	frames       map[int64]int64 // the location of each
}

type value struct {
	allocation int // index in allocations
	offset     int64
	shape      string
}

type liveValue struct {
	name  string
	bytes alloc.Bytes
}

type instruction struct {
	operation, file string
	line            int
	frame           int64
}

type location struct {
	file int64
	line int
}

// The bounds of a text: a large program has some 100,000 instructions.
const (
	maxLine  = 1 << 16
	maxItems = 1 << 20
	maxBytes = 1 << 44
	itemCost = 256 // bytes of memory for an item, besides its names
)

// read reads a text. Of a long line only the beginning is looked at.
func (p *parser) read(in *bounded.Reader) error {
	p.use = in.Use
	lines := bufio.NewReaderSize(in, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		text := string(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = lines.ReadSlice('\n')
		}
		if e := p.line(strings.TrimRight(text, "\r\n")); e != nil {
			return e
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return bounded.Torn(err)
		}
	}
}

// The lines of xla/service/buffer_assignment.cc, hlo_live_range.cc and hlo_module.cc, of 2020 to 2026.
var (
	moduleLine     = regexp.MustCompile(`^HloModule ([^\s,]{1,200}),`)
	allocationLine = regexp.MustCompile(`^allocation (\d{1,12}): (?:0x[0-9a-fA-F]+, )?size (\d{1,18}), (.*?):?$`)
	valueLine      = regexp.MustCompile(`^ value: <\d+ (\S+)(?: \(phi\))? @\d+> \(size=(\d{1,18}),offset=(\d{1,18})\): (.*)$`)
	totalLine      = regexp.MustCompile(`^Total bytes(?: used)?: (\d{1,18})\b`)
	peakLine       = regexp.MustCompile(`^  Live ranges at \d+ \(peak\):`)
	liveLine       = regexp.MustCompile(`^    (\S+): (\d{1,18}) bytes\b`)
	nameLine       = regexp.MustCompile(`^(\d{1,9}) "(.*)"$`)
	locationLine   = regexp.MustCompile(`^(\d{1,9}) \{file_name_id=(\d{1,9}) .*?\bline=(\d{1,9})`)
	frameLine      = regexp.MustCompile(`^(\d{1,9}) \{file_location_id=(\d{1,9})\b`)
	reportLine     = regexp.MustCompile(`^ .*\(\s*\d+%\);.*; allocation (\d{1,12}): size ([\d.]{1,20})([KMGT]?i?B), (.*?):?$`)
	groupLine      = regexp.MustCompile(`^ .*\(\s*\d+%\);\s*([\d.]{1,20})([KMGT]?i?B);\s*\d+;\s*(\d{1,9}); (.*)$`)
	attribute      = regexp.MustCompile(`(op_name|source_file|source_line|stack_frame_id)=(?:"((?:[^"\\]|\\.)*)"|(\d{1,9}))`)
)

func (p *parser) line(line string) error {
	if p.names && line != "" && '0' <= line[0] && line[0] <= '9' && p.table(line) {
		return p.item(line)
	}
	if p.atPeak {
		if m := liveLine.FindStringSubmatch(line); m != nil {
			if n := bytesOf(m[2]); n != nil {
				p.live = append(p.live, liveValue{valueName(m[1]), *n})
			}
			return p.item(m[1])
		}
		p.atPeak = false
	}
	switch {
	case line == "":
	case strings.HasPrefix(line, "allocation "):
		return p.allocation(line)
	case strings.HasPrefix(line, " value: <"):
		return p.value(line)
	case strings.HasPrefix(line, "Total bytes"):
		if m := totalLine.FindStringSubmatch(line); m != nil {
			p.addTotal(bytesOf(m[1]), strings.HasPrefix(line, "Total bytes used"))
		}
	case strings.HasPrefix(line, "HloModule "):
		if m := moduleLine.FindStringSubmatch(line); m != nil {
			p.module = m[1]
		}
	case line == "FileNames" || line == "FunctionNames" || line == "FileLocations" || line == "StackFrames":
		p.names = line != "FunctionNames"
	case peakLine.MatchString(line):
		p.atPeak, p.live = true, nil
	case strings.Contains(line, "metadata={"):
		return p.code(line)
	case strings.Contains(line, "%);"):
		return p.reported(line)
	}
	return nil
}

// addTotal takes a total: of a program, or of one of its memory spaces.
func (p *parser) addTotal(n *alloc.Bytes, whole bool) {
	switch {
	case n == nil:
	case whole:
		p.total = n
	case p.spaces == nil:
		p.spaces = n
	case *p.spaces < maxBytes:
		sum := *p.spaces + *n
		p.spaces = &sum
	}
}

func (p *parser) allocation(line string) error {
	m := allocationLine.FindStringSubmatch(line)
	if m == nil {
		return nil
	}
	index, _ := strconv.ParseInt(m[1], 10, 64)
	if n := bytesOf(m[2]); n != nil {
		what, _, _ := strings.Cut(m[3], " at ShapeIndex")
		p.allocations = append(p.allocations, Allocation{Index: index, Bytes: *n, What: bounded.Name(what)})
	}
	return p.item(m[3])
}

// reported reads a line of a memory report, whose sizes are rounded: of an allocation until 2025, since then of the values
// that are at one place of one.
func (p *parser) reported(line string) error {
	if m := reportLine.FindStringSubmatch(line); m != nil {
		index, _ := strconv.ParseInt(m[1], 10, 64)
		what, _, _ := strings.Cut(m[4], " at ShapeIndex")
		p.rounded = append(p.rounded, Allocation{Index: index, Bytes: roundedBytes(m[2], m[3]), What: bounded.Name(what)})
	} else if m := groupLine.FindStringSubmatch(line); m != nil {
		count, _ := strconv.Atoi(m[3])
		p.rounded = append(p.rounded, Allocation{Index: int64(len(p.rounded)), Bytes: roundedBytes(m[1], m[2]), What: bounded.Name(m[4]), Values: count})
	}
	return p.item(line)
}

// roundedBytes returns what a size such as "205.03MiB" says; 0 if it is none, or its unit does not exist.
func roundedBytes(number, unit string) alloc.Bytes {
	f, err := strconv.ParseFloat(number, 64)
	power := strings.IndexByte("BKMGT", unit[0])
	if err != nil || power < 0 {
		return 0
	}
	if f *= float64(uint64(1) << (10 * power)); f > maxBytes {
		return 0
	}
	return alloc.Bytes(f)
}

// value reads a value of the allocation that was read last.
func (p *parser) value(line string) error {
	m := valueLine.FindStringSubmatch(line)
	if m == nil || len(p.allocations) == 0 {
		return nil
	}
	last := len(p.allocations) - 1
	offset, _ := strconv.ParseInt(m[3], 10, 64)
	p.allocations[last].Values++
	p.values[valueName(m[1])] = value{last, offset, bounded.Name(m[4])}
	return p.item(m[1] + m[4])
}

// code reads the metadata of an instruction.
func (p *parser) code(line string) error {
	head, rest, ok := strings.Cut(line, " = ")
	_, metadata, found := strings.Cut(rest, "metadata={")
	if !ok || !found {
		return nil
	}
	head = strings.TrimPrefix(strings.TrimSpace(head), "from instruction: ")
	name := bounded.Name(strings.TrimPrefix(strings.TrimPrefix(head, "ROOT "), "%"))
	var i instruction
	for _, a := range attribute.FindAllStringSubmatch(metadata, 16) {
		switch a[1] {
		case "op_name":
			i.operation = bounded.Name(strings.ReplaceAll(a[2], `\'`, `'`))
		case "source_file":
			i.file = bounded.Name(a[2])
		case "source_line":
			i.line, _ = strconv.Atoi(a[3])
		case "stack_frame_id":
			i.frame, _ = strconv.ParseInt(a[3], 10, 64)
		}
	}
	p.instructions[name] = i
	return p.item(name + i.operation + i.file)
}

// table reads a line of the tables of files, locations and frames that stand before a module's code; false if it is none.
func (p *parser) table(line string) bool {
	number := func(s string) int64 { n, _ := strconv.ParseInt(s, 10, 64); return n }
	if m := nameLine.FindStringSubmatch(line); m != nil {
		p.files[number(m[1])] = bounded.Name(m[2])
		return true
	}
	if m := locationLine.FindStringSubmatch(line); m != nil {
		p.locations[number(m[1])] = location{number(m[2]), int(number(m[3]))}
		return true
	}
	if m := frameLine.FindStringSubmatch(line); m != nil {
		p.frames[number(m[1])] = number(m[2])
		return true
	}
	return false
}

// source returns the operation of an instruction and the line of code that it is of.
func (p *parser) source(name string) (operation, file string, line int) {
	i, ok := p.instructions[name]
	if !ok {
		return "", "", 0
	}
	if at, ok := p.locations[p.frames[i.frame]]; ok && i.file == "" {
		return i.operation, p.files[at.file], at.line
	}
	return i.operation, i.file, i.line
}

// item counts what was kept of a line.
func (p *parser) item(text string) error {
	if len(p.allocations)+len(p.rounded)+len(p.values)+len(p.live)+len(p.instructions)+len(p.files)+len(p.locations)+len(p.frames) > maxItems {
		return fmt.Errorf("%w: it has more than %d values and instructions", bounded.ErrTooLarge, maxItems)
	}
	return p.use(int64(itemCost + len(text)))
}

func bytesOf(digits string) *alloc.Bytes {
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > maxBytes {
		return nil
	}
	size := alloc.Bytes(n)
	return &size
}

// valueName returns the name of a value without the empty index of a whole one: "dot{}" is dot.
func valueName(name string) string { return bounded.Name(strings.TrimSuffix(name, "{}")) }

// instructionOf returns the instruction that makes a value: "fusion{1}" is of fusion.
func instructionOf(name string) string {
	name, _, _ = strings.Cut(name, "{")
	return name
}

package recordings

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// feed puts samples of any format into a recording. It gives each its place on the axis of time.
type feed struct {
	config  Config
	format  string
	builder nvml.Builder

	mode    timeMode
	start   time.Time
	dated   bool            // start is a date, not only a time of day
	day     time.Duration   // added to times of day, after midnights
	last    time.Time       // of the last sample, to find midnights
	numbers map[counted]int // samples so far of a device or process, where there are no times

	samples   int
	untimed   int // samples without a time in a file that has times
	assumed   string
	badUnit   string // the first unit that is not known
	badUnits  int
	otherLine string // the first line that is no sample
	others    int
}

type timeMode int

const (
	undecided timeMode = iota
	byClock
	byNumber
)

type counted struct {
	device nvml.Device
	pid    int
}

func newFeed(o Config) *feed { return &feed{config: o, numbers: make(map[counted]int)} }

// moment is the time of a sample as far as it is known.
type moment struct {
	time  time.Time
	known bool
	dated bool // false for a time of day
}

// add adds a sample. pid is 0, or the process of nvml.ProcessMemory.
func (f *feed) add(at moment, r *nvml.Reading, pid int, asked ...nvml.Quantity) error {
	since, ok := f.since(at, counted{r.Device, pid})
	if !ok {
		f.untimed++
		return nil
	}
	f.samples++
	return f.builder.Add(since, r, nvml.Target{PID: pid}, asked...)
}

// backwards is how far a clock may be set back without an error.
const backwards = time.Second

// since returns the time of a sample since the start. The first sample decides whether a recording has times.
func (f *feed) since(at moment, who counted) (time.Duration, bool) {
	if f.mode == undecided {
		if f.mode = byNumber; at.known {
			f.mode, f.start, f.dated, f.last = byClock, at.time, at.dated, at.time
		}
	}
	switch {
	case f.mode == byNumber:
		n := f.numbers[who]
		if _, ok := f.numbers[who]; !ok && len(f.numbers) > 1<<10 {
			return 0, true // the builder refuses so many
		}
		f.numbers[who] = n + 1
		each := f.config.Interval
		if each <= 0 {
			each = time.Second
		}
		return time.Duration(n) * each, true
	case !at.known || at.dated != f.dated:
		return 0, false
	}
	if !f.dated {
		if at.time.Before(f.last.Add(-12 * time.Hour)) {
			f.day += 24 * time.Hour
		}
		f.last = at.time
	} else if back := f.last.Sub(at.time); back > 0 && back <= backwards {
		at.time = f.last
	} else {
		f.last = at.time
	}
	since := at.time.Add(f.day).Sub(f.start)
	const century = 100 * 365 * 24 * time.Hour
	return since, since > -century && since < century // that of an earlier time is an error of the builder
}

// other counts a line that is no sample.
func (f *feed) other(line string, number int) {
	if f.others++; f.others == 1 {
		f.otherLine = fmt.Sprintf("line %d, %s", number, strconv.Quote(shorten(line)))
	}
}

func shorten(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// unknownUnit counts a value in a unit that is not known.
func (f *feed) unknownUnit(cell string) {
	if f.badUnits++; f.badUnits == 1 {
		f.badUnit = strconv.Quote(shorten(cell))
	}
}

func (f *feed) file() (*File, error) {
	if f.samples == 0 {
		return nil, fmt.Errorf("%w: %s", ErrFormat, f.why())
	}
	start := f.start
	if !f.dated {
		start = time.Time{}
	}
	rec := f.builder.Recording(f.format, start)
	rec.Interval = 0
	if f.mode == byNumber {
		rec.Interval, rec.Numbered = f.config.Interval, f.config.Interval <= 0
	}
	return &File{Recording: rec, Format: f.format, Notes: f.notes()}, nil
}

func (f *feed) why() string {
	switch {
	case f.format == formatPmon:
		return "this log of nvidia-smi pmon has no memory: add -s m"
	case f.format != "":
		return "it looks like " + f.format + ", but has no sample"
	}
	return "it is none of nvidia-smi, amd-smi, rocm-smi, gpustat, nvitop or gpumemtrack record"
}

func (f *feed) notes() (notes []string) {
	if f.assumed != "" {
		notes = append(notes, f.assumed)
	}
	if f.mode == byNumber && f.config.Interval <= 0 {
		notes = append(notes, "the file has no times: the axis counts samples")
	}
	if f.untimed > 0 {
		notes = append(notes, fmt.Sprintf("%s without a time that can be read: left out", count(f.untimed, "sample")))
	}
	if f.badUnits > 0 {
		notes = append(notes, fmt.Sprintf("%s in an unknown unit, or no number, such as %s: left out", count(f.badUnits, "value"), f.badUnit))
	}
	if f.others > 0 {
		notes = append(notes, fmt.Sprintf("%s no sample: %s", countHold(f.others), f.otherLine))
	}
	return notes
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func countHold(lines int) string {
	if lines == 1 {
		return "1 line holds"
	}
	return strconv.Itoa(lines) + " lines hold"
}

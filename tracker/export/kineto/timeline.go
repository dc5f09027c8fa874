package kineto

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// categories are those of a memory timeline, by their numbers: _CATEGORY_TO_INDEX of _memory_profiler.py. The last is unknown.
var categories = [...]string{"Parameter", "OptimizerState", "Input", "Temporary", "Activation", "Gradient", "AutogradDetail", ""}

// levels are the bytes of each category.
type levels [len(categories)]int64

func (l *levels) sum() (sum int64) {
	for _, n := range l {
		sum += n
	}
	return sum
}

// ReadTimeline reads a file of Profiler.export_memory_timeline, ".json" or ".raw.json.gz", packed by gzip or not. It
// returns what was live at the end and at the peak, by category. Counts are unknown, and so zero. The error says where
// the file is damaged, or that it is no memory timeline.
func ReadTimeline(r io.Reader) (*export.Usage, error) {
	in, err := jsonstream.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read memory timeline: %w", err)
	}
	t := timeline{in: in}
	if err := t.read(); err != nil {
		return nil, fmt.Errorf("read memory timeline: %w", bounded.Torn(err))
	}
	return t.usage(), nil
}

// timeline is a timeline that is being read.
type timeline struct {
	in        *jsonstream.Reader
	now, peak levels
	most      int64
	last      float64 // the time, in the file's unit
	perSecond float64
	rows      int
}

// errTimeline is the error of a file that is none.
var errTimeline = errors.New("want [times, sizes], or a list of [time, action, bytes, category]")

// rawFields is the number of fields of an event.
const rawFields = 4

// read reads the outer list. Its first element is either the times or the first event, which only the next one shows.
func (t *timeline) read() error {
	elements := 0
	var first []float64
	err := t.in.Elements(func() error {
		elements++
		numbers, nested, err := t.element(false)
		switch {
		case err != nil:
			return err
		case nested && elements == 2:
			t.perSecond = 1e6
			return nil
		case nested:
			return errTimeline
		case elements == 1:
			first = numbers
			return nil
		case elements == 2:
			if err := t.raw(first); err != nil {
				return err
			}
		}
		return t.raw(numbers)
	})
	switch {
	case err != nil:
		return err
	case elements == 1:
		return t.raw(first)
	case t.rows == 0:
		return errors.New("it has no times")
	}
	return nil
}

// element reads a list of numbers, of which it keeps the first few and the last, or a list of sizes. It is inside of one already,
// or not.
func (t *timeline) element(inside bool) (numbers []float64, nested bool, err error) {
	const most = 16
	err = t.in.Elements(func() error {
		next, err := t.in.Next()
		if err != nil {
			return err
		}
		if next == '[' {
			if nested = true; inside {
				return errTimeline
			}
			row, _, err := t.element(true)
			if err != nil {
				return err
			}
			return t.sizes(row)
		}
		text, err := t.in.Raw()
		if err != nil {
			return err
		}
		v, err := strconv.ParseFloat(string(text), 64)
		if err != nil {
			return errTimeline
		}
		if len(numbers) == most {
			numbers = numbers[:most-1]
		}
		numbers = append(numbers, v)
		return nil
	})
	return numbers, nested, err
}

// sizes takes the bytes of each category at a time. The first number is always 0.
func (t *timeline) sizes(row []float64) error {
	if len(row) != len(categories)+1 {
		return errTimeline
	}
	for i := range categories {
		v := row[i+1]
		if !(v >= -maxSize && v <= maxSize) {
			return errTimeline
		}
		t.now[i] = int64(v)
	}
	t.step()
	return nil
}

// raw takes an event.
func (t *timeline) raw(event []float64) error {
	if len(event) != rawFields {
		return errTimeline
	}
	at, bytes, category := event[0], event[2], event[3]
	if !(bytes >= -maxSize && bytes <= maxSize) || category != float64(int(category)) || category < 0 || int(category) >= len(categories) {
		return errTimeline
	}
	t.last, t.perSecond = max(t.last, at), 1e9
	n := &t.now[int(category)]
	*n = min(max(*n+int64(bytes), -maxSize), maxSize)
	t.step()
	return nil
}

func (t *timeline) step() {
	t.rows++
	if sum := t.now.sum(); sum > t.most {
		t.most, t.peak = sum, t.now
	}
}

func (t *timeline) usage() *export.Usage {
	u := &export.Usage{}
	if seconds := t.last / t.perSecond; t.last > 0 && seconds > 1e9 && seconds < 1e10 {
		u.Time = time.Unix(0, int64(seconds*1e9)).UTC()
	}
	for i, name := range categories {
		if t.now[i] <= 0 && t.peak[i] <= 0 {
			continue
		}
		row := export.Row{Kind: name}
		row.Live, row.Peak = mem.Tally{Bytes: alloc.Bytes(max(t.now[i], 0))}, mem.Tally{Bytes: alloc.Bytes(max(t.peak[i], 0))}
		u.Rows = append(u.Rows, row)
	}
	return u
}

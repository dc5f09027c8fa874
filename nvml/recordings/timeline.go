package recordings

import (
	"encoding/json"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// maxTimes bounds the times of a memory timeline, which stand before all sizes.
const maxTimes = 1 << 22

// timeline reads what Profiler.export_memory_timeline of PyTorch wrote: [times, sizes], or a list of
// [time, action, bytes, category]. The outer list was begun. The curve is the sum of all categories.
func (j *jsonReader) timeline(d *json.Decoder, bound *valueBound) error {
	j.format = formatTimeline
	j.assumed = "the file does not say of which device it is; the line is the sum of all categories"
	level := 0.0
	var first []float64
	for n := 0; d.More(); n++ {
		if err := open(d); err != nil {
			return err
		}
		next, err := firstByte(d)
		switch {
		case err != nil:
			return err
		case next == '[' && n == 1:
			if err := j.sizes(d, bound, first); err != nil {
				return err
			}
			continue
		}
		numbers, err := numbersIn(d, bound)
		if err != nil {
			return err
		}
		if n == 0 {
			first = numbers
			continue
		}
		if n == 1 {
			if err := j.change(first, &level); err != nil {
				return err
			}
		}
		if err := j.change(numbers, &level); err != nil {
			return err
		}
	}
	return nil
}

var errTimeline = fmt.Errorf("%w: it is a JSON list, but no memory timeline of PyTorch", ErrFormat)

// open begins a list.
func open(d *json.Decoder) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	if token != json.Delim('[') {
		return errTimeline
	}
	return nil
}

// numbersIn reads the rest of a list of numbers.
func numbersIn(d *json.Decoder, bound *valueBound) (numbers []float64, err error) {
	for d.More() {
		bound.since = 0
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		number, ok := token.(json.Number)
		if !ok {
			return nil, errTimeline
		}
		v, err := number.Float64()
		if err != nil || len(numbers) == maxTimes {
			return nil, errTimeline
		}
		numbers = append(numbers, v)
	}
	_, err = d.Token()
	return numbers, err
}

// sizes reads the bytes of each category at each time. Times are microseconds.
func (j *jsonReader) sizes(d *json.Decoder, bound *valueBound, times []float64) error {
	for i := 0; d.More(); i++ {
		if err := open(d); err != nil {
			return err
		}
		row, err := numbersIn(d, bound)
		if err != nil {
			return err
		}
		if i >= len(times) {
			return errTimeline
		}
		sum := 0.0
		for _, v := range row {
			sum += v
		}
		if err := j.level(times[i]/1e6, sum); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// change takes an event. Its time is in nanoseconds; that of what was there before the profile is -1.
func (j *jsonReader) change(event []float64, level *float64) error {
	const fields = 4
	if len(event) != fields {
		return errTimeline
	}
	if *level += event[2]; event[0] < 0 {
		return nil
	}
	return j.level(event[0]/1e9, *level)
}

// level adds a sample.
func (j *jsonReader) level(seconds, bytes float64) error {
	const most = 1 << 52
	if !(seconds >= 0 && seconds < 1e10) || !(bytes > -most && bytes < most) {
		return errTimeline
	}
	r := nvml.Reading{Device: nvml.Device{Index: -1}}
	r.Set(nvml.MemoryUsed, max(bytes, 0))
	return j.add(atSeconds(seconds), &r, 0)
}

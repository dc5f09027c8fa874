package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// jsonLines is the format of one JSON object a line. The first line is the
// header. A sample is
//
//	{"time_seconds":0.200113,"device":0,"memory_used_bytes":1729236992}
//
// where device is an index in the header's devices, null a gap, and a key that
// is not there a quantity that was not asked for. A note on a device's series
// is a line with "note", or "ended" if the device was lost; "capacity_bytes" is a
// device's memory.
type jsonLines struct{}

func (jsonLines) begin(b []byte, h header) ([]byte, error) {
	line, err := json.Marshal(h)
	return append(append(b, line...), '\n'), err
}

func (jsonLines) row(b []byte, r row) []byte {
	b = jsonStart(b, r.time, r.device)
	if r.asked&memoryQuants != 0 && r.reading.Scope.String() != "" {
		b = append(append(append(b, `,"scope":"`...), r.reading.Scope...), '"')
	}
	for q := range numQuantities {
		if !r.asked.has(q) {
			continue
		}
		b = append(append(append(b, `,"`...), q.Key()...), `":`...)
		if v, ok := r.reading.Value(q); ok {
			b = strconv.AppendFloat(b, v, 'f', -1, 64)
		} else {
			b = append(b, "null"...)
		}
	}
	return append(b, '}', '\n')
}

func (jsonLines) remark(b []byte, m remark) []byte {
	b = jsonStart(b, m.time, m.device)
	if m.capacity > 0 {
		b = strconv.AppendFloat(append(b, `,"capacity_bytes":`...), m.capacity, 'f', -1, 64)
		return append(b, '}', '\n')
	}
	text, _ := json.Marshal(m.text) // a string always has one
	if m.ended {
		b = append(b, `,"ended":`...)
	} else {
		b = append(append(append(b, `,"quantity":"`...), m.quantity.Key()...), `","note":`...)
	}
	return append(append(b, text...), '}', '\n')
}

func jsonStart(b []byte, t time.Duration, device int) []byte {
	b = append(b, `{"time_seconds":`...)
	b = strconv.AppendFloat(b, t.Seconds(), 'f', 6, 64)
	b = append(b, `,"device":`...)
	return strconv.AppendInt(b, int64(device), 10)
}

// jsonReader reads jsonLines back.
type jsonReader struct {
	store  *store
	fields map[string]json.RawMessage // of the last line; the map is used again
}

func (r *jsonReader) line(text []byte) error {
	if r.store == nil {
		return r.header(text)
	}
	clear(r.fields)
	if err := json.Unmarshal(text, &r.fields); err != nil {
		return err
	}
	at, device, err := r.place()
	if err != nil {
		return err
	}
	if capacity := r.fields["capacity_bytes"]; capacity != nil {
		bytes, err := parseFigure(MemoryTotal, string(capacity))
		r.store.remark(remark{device: device, capacity: bytes})
		return err
	}
	if r.fields["note"] != nil || r.fields["ended"] != nil {
		return r.remark(at, device)
	}
	reading := &Reading{Scope: ofDevice}
	if scope := r.fields["scope"]; scope != nil {
		var key string
		err := json.Unmarshal(scope, &key)
		if err == nil {
			reading.Scope, err = scopeOf(key)
		}
		if err != nil {
			return fmt.Errorf("scope: %w", err)
		}
	}
	asked, err := jsonFigures(r.fields, reading)
	if err != nil {
		return err
	}
	r.store.add(row{time: at, device: device, asked: asked, reading: reading})
	return nil
}

// place returns a line's time and device.
func (r *jsonReader) place() (at time.Duration, device int, err error) {
	t, err1 := strconv.ParseFloat(string(r.fields["time_seconds"]), 64)
	device, err2 := strconv.Atoi(string(r.fields["device"]))
	if err1 != nil || err2 != nil || device < 0 || device >= len(r.store.tracks) {
		return 0, 0, errors.New("a sample without its time, or of a device that the first line does not list")
	}
	if at, err = seconds(t); err == nil {
		err = r.store.advance(at)
	}
	return at, device, err
}

func (r *jsonReader) remark(at time.Duration, device int) error {
	m := remark{time: at, device: device}
	text := r.fields["note"]
	if ended := r.fields["ended"]; ended != nil {
		text, m.ended = ended, true
	}
	if of := r.fields["quantity"]; of != nil {
		var one quantityKeys
		if err := json.Unmarshal(slices.Concat([]byte("["), of, []byte("]")), &one); err != nil {
			return err
		}
		m.quantity = one[0]
	}
	if err := json.Unmarshal(text, &m.text); err != nil {
		return fmt.Errorf("note: %w", err)
	}
	r.store.remark(m)
	return nil
}

func (r *jsonReader) header(text []byte) error {
	var h header
	if err := json.Unmarshal(text, &h); err != nil {
		return fmt.Errorf("the first line is not the header of a recording: %w", err)
	}
	if h.Schema != schema {
		return fmt.Errorf("schema %q: this program reads %q", h.Schema, schema)
	}
	if err := checkDevices(len(h.Devices)); err != nil {
		return err
	}
	r.store = newStore(h, defaultPoints)
	return nil
}

func (r *jsonReader) result() *store { return r.store }

func jsonFigures(fields map[string]json.RawMessage, into *Reading) (asked quantitySet, err error) {
	for key, raw := range fields {
		q, ok := quantityOfKey(key)
		if !ok {
			continue
		}
		asked |= 1 << q
		if string(raw) == "null" {
			continue
		}
		v, err := parseFigure(q, string(raw))
		if err != nil {
			return 0, err
		}
		into.Set(q, v)
	}
	return asked, nil
}

// parseFigure reads a figure that the quantity can have.
func parseFigure(q Quantity, text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.IsNaN(v):
		return 0, fmt.Errorf("%s: %q is not a number", q.Key(), text)
	case math.Abs(v) > math.MaxInt64 || v < 0 && q != Temperature:
		return 0, fmt.Errorf("%s: %s cannot be", q.Key(), text)
	}
	return v, nil
}

// seconds converts a number in a file to a duration of at most a century.
func seconds(s float64) (time.Duration, error) {
	if !(s >= 0 && s < 100*365*24*3600) {
		return 0, fmt.Errorf("time_seconds: %v is not a time since the recording's start", s)
	}
	return time.Duration(s * float64(time.Second)), nil
}

package nvml

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// csvLines is the CSV format: a header with the units in its names, then one
// line a device and time. NA is a gap; an empty field is a quantity that was not
// asked for at that time. scope and note are empty most of the time.
type csvLines struct {
	places []string // the constant fields of each device, quoted
	asked  []Quantity
}

var csvPlace = []string{"time_seconds", "gpu", "name", "uuid", "target"}

const (
	naField      = "NA"
	capacityNote = "capacity"
)

func (c *csvLines) begin(b []byte, h header) ([]byte, error) {
	c.asked = h.Quantities
	target := ""
	if h.PID != 0 {
		target = h.target().String()
	}
	for _, d := range h.Devices {
		place, err := csvLine(d.Label(), d.Name, d.UUID, target)
		if err != nil {
			return b, err
		}
		c.places = append(c.places, strings.TrimSuffix(place, "\n"))
	}
	columns := slices.Clone(csvPlace)
	for _, q := range c.asked {
		columns = append(columns, q.Key())
	}
	line, err := csvLine(append(columns, "scope", "note")...)
	return append(b, line...), err
}

func csvLine(fields ...string) (string, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	err := w.Write(fields)
	w.Flush()
	return b.String(), err
}

func (c *csvLines) start(b []byte, t time.Duration, device int) []byte {
	b = strconv.AppendFloat(b, t.Seconds(), 'f', 6, 64)
	return append(append(b, ','), c.places[device]...)
}

func (c *csvLines) row(b []byte, r row) []byte {
	b = c.start(b, r.time, r.device)
	for _, q := range c.asked {
		b = append(b, ',')
		switch v, ok := r.reading.Value(q); {
		case !r.asked.has(q):
		case ok:
			b = strconv.AppendFloat(b, v, 'f', -1, 64)
		default:
			b = append(b, naField...)
		}
	}
	b = append(b, ',')
	if r.reading.Scope.String() != "" {
		b = append(b, r.reading.Scope...)
	}
	return append(b, ',', '\n')
}

// note writes a note as "QUANTITY: text", "ended: text" or "capacity: bytes".
func (c *csvLines) note(b []byte, m seriesNote) []byte {
	b = c.start(b, m.time, m.device)
	for range c.asked {
		b = append(b, ',')
	}
	what := m.quantity.Key()
	switch {
	case m.ended:
		what = "ended"
	case m.capacity > 0:
		what, m.text = capacityNote, strconv.FormatFloat(m.capacity, 'f', -1, 64)
	}
	text := strings.ReplaceAll(m.text, "\n", "; ") // one note, one line
	note, _ := csvLine("", "", what+": "+text)     // a buffer takes everything
	return append(b, note...)
}

// csvReader reads csvLines back. It knows the devices that the lines name.
type csvReader struct {
	columns map[string]int
	store   *store
}

func (r *csvReader) line(text []byte) error {
	fields, err := csv.NewReader(bytes.NewReader(text)).Read()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if r.store == nil {
		return r.header(fields)
	}
	if len(fields) != len(r.columns) {
		return fmt.Errorf("%d fields where the header has %d", len(fields), len(r.columns))
	}
	t, err := parseTime(fields[r.columns["time_seconds"]])
	if err != nil {
		return err
	}
	device, err := r.device(fields)
	if err == nil {
		err = r.store.advance(t)
	}
	if err != nil {
		return err
	}
	if note := fields[r.columns["note"]]; note != "" {
		what, text, _ := strings.Cut(note, ": ")
		if what == capacityNote {
			bytes, err := parseValue(MemoryTotal, text)
			r.store.note(seriesNote{device: device, capacity: bytes})
			return err
		}
		q, _ := quantityOfKey(what)
		r.store.note(seriesNote{time: t, device: device, quantity: q, text: text, ended: what == "ended"})
		return nil
	}
	return r.sample(t, device, fields)
}

func parseTime(field string) (time.Duration, error) {
	t, err := strconv.ParseFloat(field, 64)
	if err != nil {
		return 0, fmt.Errorf("time_seconds: %q is not a number", field)
	}
	return seconds(t)
}

func (r *csvReader) header(fields []string) error {
	r.columns = make(map[string]int, len(fields))
	for i, name := range fields {
		if _, twice := r.columns[name]; twice {
			return fmt.Errorf("the first line has two columns %q: not a recording of GPU memory", name)
		}
		r.columns[name] = i
	}
	for _, name := range append(slices.Clone(csvPlace), "scope", "note") {
		if _, ok := r.columns[name]; !ok {
			return fmt.Errorf("the first line has no column %q: not a recording of GPU memory", name)
		}
	}
	r.store = newStore(header{}, defaultPoints)
	return nil
}

func (r *csvReader) sample(t time.Duration, device int, fields []string) error {
	reading := Reading{Scope: ofDevice}
	var asked quantitySet
	for q := range numQuantities {
		column, ok := r.columns[q.Key()]
		if !ok || fields[column] == "" {
			continue
		}
		asked |= 1 << q
		if fields[column] == naField {
			continue
		}
		v, err := parseValue(q, fields[column])
		if err != nil {
			return err
		}
		reading.Set(q, v)
	}
	if scope := fields[r.columns["scope"]]; scope != "" {
		var err error
		if reading.Scope, err = scopeOf(scope); err != nil {
			return err
		}
	}
	r.store.add(row{time: t, device: device, asked: asked, reading: &reading})
	return nil
}

// device returns the index of a line's device, a new one if it is the first.
func (r *csvReader) device(fields []string) (int, error) {
	uuid := fields[r.columns["uuid"]]
	h := &r.store.header
	for i, d := range h.Devices {
		if d.UUID == uuid {
			return i, nil
		}
	}
	d := Device{UUID: uuid, Name: fields[r.columns["name"]]}
	label := fields[r.columns["gpu"]]
	if n, _ := fmt.Sscanf(label, "GPU %d MIG %d", &d.Index, &d.MIG); n == 0 {
		return 0, fmt.Errorf("gpu %q: it reads as %q", label, "GPU 0")
	} else if n == 2 {
		d.Parent = "unknown"
	}
	if target := fields[r.columns["target"]]; target != "" {
		fmt.Sscanf(target, "pid %d", &h.PID)
		h.Children = strings.HasSuffix(target, " and children")
	}
	h.Devices = append(h.Devices, d)
	if err := checkDevices(len(h.Devices)); err != nil {
		return 0, err
	}
	r.store.tracks = append(r.store.tracks, track{})
	return len(h.Devices) - 1, nil
}

func (r *csvReader) result() *store { return r.store }

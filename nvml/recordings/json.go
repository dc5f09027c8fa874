package recordings

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// maxValue bounds one JSON value: what a tool prints at one moment.
const maxValue = 1 << 24

// readJSON reads JSON values one after the other, or the elements of lists. The last may lack its end.
func readJSON(in *bufio.Reader, f *feed) error {
	j := &jsonReader{feed: f, clock: parser{location: f.config.Location}}
	bound := &valueBound{in: in}
	d := json.NewDecoder(bound)
	d.UseNumber()
	for {
		err := j.value(d, bound)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF) && f.samples > 0:
			return nil
		case err != nil:
			return err
		}
	}
}

// valueBound ends with an error where a value is too long.
type valueBound struct {
	in    io.Reader
	since int
}

func (b *valueBound) Read(p []byte) (int, error) {
	if b.since > maxValue {
		return 0, errors.New("a JSON value of more than 16 MiB")
	}
	n, err := b.in.Read(p[:min(len(p), 1<<16)])
	b.since += n
	return n, err
}

// jsonReader goes through the values.
type jsonReader struct {
	*feed
	clock parser
}

// value reads a value, or the elements of a list.
func (j *jsonReader) value(d *json.Decoder, bound *valueBound) error {
	first, err := firstByte(d)
	if err != nil {
		return err
	}
	if first != '[' {
		return j.one(d, bound)
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	if next, err := firstByte(d); err == nil && next == '[' {
		if err := j.timeline(d, bound); err != nil {
			return err
		}
	}
	for d.More() {
		if err := j.one(d, bound); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// firstByte returns the first byte of the next value. More asks for it, and takes a comma between values for granted.
func firstByte(d *json.Decoder) (byte, error) {
	d.More()
	rest := bufio.NewReader(d.Buffered())
	for {
		c, err := rest.ReadByte()
		if err != nil {
			return 0, io.EOF
		}
		if !strings.ContainsRune(" \t\r\n,", rune(c)) {
			return c, nil
		}
	}
}

func (j *jsonReader) one(d *json.Decoder, bound *valueBound) error {
	bound.since = 0
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return fmt.Errorf("%w: it is JSON, with %s where gpustat, nvitop, amd-smi and rocm-smi have an object", ErrFormat, article(wrong.Value))
		}
		if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
			return fmt.Errorf("%w: it begins like JSON, but is none at byte %d", ErrFormat, wrong.Offset)
		}
		return err
	}
	return j.object(v)
}

// object takes what a tool printed at one moment.
func (j *jsonReader) object(v map[string]any) error {
	if gpus, ok := v["gpus"].([]any); ok {
		return j.gpustat(v, gpus)
	}
	if gpus, ok := v["gpu_data"].([]any); ok { // amd-smi of ROCm 7
		at := j.momentOf(v)
		for _, g := range gpus {
			if err := j.amd(g, at); err != nil {
				return err
			}
		}
		return nil
	}
	if _, ok := v["gpu"]; ok {
		return j.amd(v, j.momentOf(v))
	}
	for _, key := range slices.SortedFunc(maps.Keys(v), compareNumbered) {
		if card, ok := v[key].(map[string]any); ok && strings.HasPrefix(key, "card") {
			j.format = formatROCm
			index, uuid := indexOf(key, "")
			if err := j.flat(card, nvml.Device{Index: index, UUID: uuid}, j.momentOf(v)); err != nil {
				return err
			}
		}
	}
	return j.nvitop(v)
}

// compareNumbered orders card2 before card10.
func compareNumbered(x, y string) int {
	if len(x) != len(y) {
		return len(x) - len(y)
	}
	return strings.Compare(x, y)
}

func (j *jsonReader) momentOf(v map[string]any) moment {
	for key, value := range v {
		if key == "timestamp" || key == "query_time" || strings.HasSuffix(key, "/timestamp") {
			text, _ := scalar(value)
			return j.clock.parse(text)
		}
	}
	return moment{}
}

// scalar returns a value and its unit as the text of a cell. amd-smi writes {"value": 5, "unit": "W"}.
func scalar(v any) (text string, ok bool) {
	switch v := v.(type) {
	case nil:
		return "", true
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case map[string]any:
		inner, ok := v["value"]
		if !ok {
			return "", false
		}
		text, ok = scalar(inner)
		if unit, is := v["unit"].(string); ok && is && !isMissing(text) {
			text += " " + unit
		}
		return text, ok
	}
	return "", false
}

// gpustat takes what gpustat --json prints.
func (j *jsonReader) gpustat(v map[string]any, gpus []any) error {
	j.format = formatGpustat
	at := j.momentOf(v)
	for _, g := range gpus {
		gpu, ok := g.(map[string]any)
		if !ok {
			continue
		}
		d := deviceIn(gpu)
		if err := j.flat(gpu, d, at); err != nil {
			return err
		}
		processes, _ := gpu["processes"].([]any)
		for _, p := range processes {
			process, _ := p.(map[string]any)
			number, _ := scalar(process["pid"])
			pid, err := strconv.Atoi(number)
			if err != nil || pid <= 0 {
				continue
			}
			r := nvml.Reading{Device: d}
			memory, _ := scalar(process["gpu_memory_usage"])
			j.set(&r, nvml.ProcessMemory, memory, "MiB")
			if err := j.add(at, &r, pid, nvml.ProcessMemory); err != nil {
				return err
			}
		}
	}
	return nil
}

// deviceIn returns the GPU that an object is about.
func deviceIn(v map[string]any) nvml.Device {
	d := nvml.Device{Index: -1}
	for key, value := range v {
		m, ok := meaningOf(key)
		text, is := scalar(value)
		if !ok || !is || text == "" {
			continue
		}
		switch m.role {
		case indexRole:
			d.Index, d.UUID = indexOf(text, d.UUID)
		case uuidRole:
			d.UUID = text
		case busRole:
			d.BusID = text
		case nameRole:
			d.Name = text
		}
	}
	return d
}

// amd takes an element of amd-smi: the values of metric are nested, those of monitor are not.
func (j *jsonReader) amd(v any, at moment) error {
	gpu, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	j.format = formatAMD
	number, _ := scalar(gpu["gpu"])
	d := nvml.Device{}
	d.Index, d.UUID = indexOf(number, "")
	flat := maps.Clone(gpu)
	for _, section := range []string{"mem_usage", "usage", "power", "temperature", "clock", "fan"} {
		inner, _ := gpu[section].(map[string]any)
		for key, value := range inner {
			if clock, ok := value.(map[string]any); ok && section == "clock" { // "gfx_0": {"clk": {...}}
				key, value = key+"_clk", clock["clk"]
			}
			flat[key] = value
		}
	}
	return j.flat(flat, d, at)
}

// flat adds the quantities of an object whose keys are names of columns.
func (j *jsonReader) flat(v map[string]any, d nvml.Device, at moment) error {
	best, texts := make(map[nvml.Quantity]meaning), make(map[nvml.Quantity]string)
	for key, value := range v {
		m, ok := meaningOf(key)
		text, is := scalar(value)
		if !ok || !is {
			continue
		}
		if m.role == nameRole && d.Name == "" {
			d.Name = text
		}
		if before, known := best[m.quantity]; m.role == quantityRole && (!known || isMissing(texts[m.quantity]) || m.rank < before.rank && !isMissing(text)) {
			best[m.quantity], texts[m.quantity] = m, text
		}
	}
	return j.sample(best, texts, d, at)
}

func (j *jsonReader) sample(best map[nvml.Quantity]meaning, texts map[nvml.Quantity]string, d nvml.Device, at moment) error {
	if len(best) == 0 {
		return nil
	}
	r := nvml.Reading{Device: d}
	var asked []nvml.Quantity
	for q, m := range best {
		if !j.set(&r, q, texts[q], m.unit) {
			asked = append(asked, q)
		}
	}
	return j.add(at, usedAlone(&r), 0, asked...)
}

// nvitop takes what a ResourceMetricCollector of nvitop returned: a value for each statistic of each quantity of each GPU.
func (j *jsonReader) nvitop(v map[string]any) error {
	type gpu struct {
		best  map[nvml.Quantity]meaning
		texts map[nvml.Quantity]string
	}
	gpus := make(map[int]gpu)
	for key, value := range v {
		index, m, ok := collectedMeaning(key)
		text, is := scalar(value)
		if !ok || !is {
			continue
		}
		g, known := gpus[index]
		if !known {
			g = gpu{make(map[nvml.Quantity]meaning), make(map[nvml.Quantity]string)}
			gpus[index] = g
		}
		if before, known := g.best[m.quantity]; !known || m.rank < before.rank {
			g.best[m.quantity], g.texts[m.quantity] = m, text
		}
	}
	for _, index := range slices.Sorted(maps.Keys(gpus)) {
		j.format = formatNvitop
		if err := j.sample(gpus[index].best, gpus[index].texts, nvml.Device{Index: index}, j.momentOf(v)); err != nil {
			return err
		}
	}
	return nil
}

// article puts an article before the name of a kind of JSON value.
func article(kind string) string {
	if kind == "array" {
		return "a list"
	}
	kind, _, _ = strings.Cut(kind, " ")
	return "a " + kind
}

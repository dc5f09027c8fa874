package recordings

import (
	"bufio"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// xmlFields are the elements of nvidia-smi -q -x that are read, below <gpu>. Of those that are one quantity the first in
// the list counts; drivers renamed some.
var xmlFields = map[string]struct {
	quantity nvml.Quantity
	unit     string
	rank     int
}{
	"fb_memory_usage/total":                        {nvml.MemoryTotal, "MiB", 0},
	"fb_memory_usage/used":                         {nvml.MemoryUsed, "MiB", 0},
	"fb_memory_usage/free":                         {nvml.MemoryFree, "MiB", 0},
	"memory_usage/total":                           {nvml.MemoryTotal, "MiB", 1}, // v4
	"memory_usage/used":                            {nvml.MemoryUsed, "MiB", 1},
	"utilization/gpu_util":                         {nvml.Utilization, "%", 0},
	"gpu_power_readings/power_draw":                {nvml.Power, "W", 0},
	"gpu_power_readings/instant_power_draw":        {nvml.Power, "W", 1},
	"gpu_power_readings/average_power_draw":        {nvml.Power, "W", 2},
	"power_readings/power_draw":                    {nvml.Power, "W", 0},
	"temperature/gpu_temp":                         {nvml.Temperature, "C", 0},
	"fan_speed":                                    {nvml.FanSpeed, "%", 0},
	"clocks/graphics_clock":                        {nvml.ClockGraphics, "MHz", 0},
	"clocks/sm_clock":                              {nvml.ClockSM, "MHz", 0},
	"clocks/mem_clock":                             {nvml.ClockMemory, "MHz", 0},
	"clocks/video_clock":                           {nvml.ClockVideo, "MHz", 0},
	"mig_devices/mig_device/fb_memory_usage/total": {nvml.MemoryTotal, "MiB", 0},
	"mig_devices/mig_device/fb_memory_usage/used":  {nvml.MemoryUsed, "MiB", 0},
}

// The bounds of a document: one of nvidia-smi is six elements deep, and its tags and texts are short.
const (
	maxDepth   = 32
	maxElement = 1 << 20 // bytes without an end of a tag
	maxXMLText = 4096
)

// readXML reads documents of nvidia-smi -q -x, one after the other. The last may lack its end.
func readXML(in *bufio.Reader, f *feed) error {
	x := &xmlReader{feed: f, clock: parser{location: f.config.Location}}
	d := xml.NewDecoder(&tagBound{in: in})
	d.Strict = false
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	for {
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			if syntax, ok := errors.AsType[*xml.SyntaxError](err); ok && strings.Contains(syntax.Msg, "unexpected EOF") && f.samples > 0 {
				return nil
			}
			return fmt.Errorf("it begins like XML of nvidia-smi: %w", err)
		}
		if err := x.token(token); err != nil {
			return err
		}
	}
}

// tagBound ends with an error where a tag or a text is too long to be one of nvidia-smi, so that no decoder keeps it.
type tagBound struct {
	in    *bufio.Reader
	since int // bytes since the last >
}

// ReadByte makes the decoder read no further than it needs.
func (b *tagBound) ReadByte() (byte, error) {
	c, err := b.in.ReadByte()
	if err != nil {
		return 0, err
	}
	if b.since++; c == '>' {
		b.since = 0
	}
	if b.since > maxElement {
		return 0, errors.New("a tag or a text of more than 1 MiB")
	}
	return c, nil
}

func (b *tagBound) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c, err := b.ReadByte()
	if err != nil {
		return 0, err
	}
	p[0] = c
	return 1, nil
}

// xmlReader goes through the elements.
type xmlReader struct {
	*feed
	clock parser
	path  []string
	text  strings.Builder
	at    moment
	gpus  int // of this document

	gpu, mig xmlDevice
	process  xmlProcess
	apps     []xmlProcess
}

type xmlDevice struct {
	reading nvml.Reading
	ranks   map[nvml.Quantity]int // of what was read
	asked   []nvml.Quantity
}

type xmlProcess struct{ pid, memory string }

func (x *xmlReader) token(token xml.Token) error {
	switch e := token.(type) {
	case xml.StartElement:
		if len(x.path) == maxDepth {
			return fmt.Errorf("%w: elements are nested too deep", ErrFormat)
		}
		x.path = append(x.path, strings.Clone(e.Name.Local))
		x.text.Reset()
		x.begin(e)
	case xml.CharData:
		if x.text.Len()+len(e) <= maxXMLText {
			x.text.Write(e)
		}
	case xml.EndElement:
		if len(x.path) == 0 || x.path[len(x.path)-1] != e.Name.Local {
			if e.Name.Local == "nvidia_smi_log" {
				x.path = x.path[:0] // a document that was cut
			}
			return nil
		}
		err := x.end(strings.TrimSpace(x.text.String()))
		x.path = x.path[:len(x.path)-1]
		x.text.Reset()
		return err
	}
	return nil
}

// inGPU returns the path below the element of a GPU, and whether it is in one.
func (x *xmlReader) inGPU() (string, bool) {
	if len(x.path) < 2 || x.path[0] != "nvidia_smi_log" || x.path[1] != "gpu" {
		return "", false
	}
	return strings.Join(x.path[2:], "/"), true
}

func (x *xmlReader) begin(e xml.StartElement) {
	switch e.Name.Local {
	case "nvidia_smi_log":
		x.path = append(x.path[:0], e.Name.Local)
		x.format, x.gpus, x.at = formatXML, 0, moment{}
	case "gpu":
		if len(x.path) != 2 {
			return
		}
		x.gpu, x.apps = newXMLDevice(nvml.Device{Index: x.gpus}), x.apps[:0]
		x.gpus++
		for _, a := range e.Attr {
			if a.Name.Local == "id" {
				x.gpu.reading.BusID = strings.Clone(a.Value)
			}
		}
	case "mig_device":
		x.mig = newXMLDevice(nvml.Device{Index: x.gpu.reading.Index, MIG: 1, Parent: x.parent()})
	case "process_info":
		x.process = xmlProcess{}
	}
}

// parent returns the UUID of the GPU that is read, or what stands for it.
func (x *xmlReader) parent() string {
	if x.gpu.reading.UUID != "" {
		return x.gpu.reading.UUID
	}
	return "unknown"
}

func newXMLDevice(d nvml.Device) xmlDevice {
	return xmlDevice{reading: nvml.Reading{Device: d}, ranks: make(map[nvml.Quantity]int)}
}

// end takes an element that ended, with its text.
func (x *xmlReader) end(text string) error {
	path, inGPU := x.inGPU()
	switch {
	case len(x.path) == 2 && x.path[1] == "timestamp":
		x.at = x.clock.parse(text)
	case !inGPU:
	case path == "":
		return x.endGPU()
	case path == "uuid":
		x.gpu.reading.UUID = text
	case path == "product_name":
		x.gpu.reading.Name = text
	case path == "processes/process_info/pid":
		x.process.pid = text
	case path == "processes/process_info/used_memory":
		x.process.memory = text
	case path == "processes/process_info":
		if len(x.apps) < maxCells {
			x.apps = append(x.apps, x.process)
		}
	case path == "mig_devices/mig_device/index":
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			x.mig.reading.MIG = n + 1
		}
	case path == "mig_devices/mig_device":
		return x.addDevice(&x.mig)
	case strings.HasPrefix(path, "mig_devices/"):
		x.field(&x.mig, path, text)
	default:
		x.field(&x.gpu, path, text)
	}
	return nil
}

func (x *xmlReader) field(to *xmlDevice, path, text string) {
	field, ok := xmlFields[path]
	if before, read := to.ranks[field.quantity]; !ok || read && before <= field.rank {
		return
	}
	if x.set(&to.reading, field.quantity, text, field.unit) {
		to.ranks[field.quantity] = field.rank
	} else {
		to.asked = append(to.asked, field.quantity)
	}
}

func (x *xmlReader) addDevice(d *xmlDevice) error {
	if len(d.ranks)+len(d.asked) == 0 {
		return nil
	}
	return x.add(x.at, usedAlone(&d.reading), 0, d.asked...)
}

func (x *xmlReader) endGPU() error {
	if err := x.addDevice(&x.gpu); err != nil {
		return err
	}
	for _, p := range x.apps {
		pid, err := strconv.Atoi(p.pid)
		if err != nil || pid <= 0 {
			continue
		}
		r := nvml.Reading{Device: x.gpu.reading.Device}
		x.set(&r, nvml.ProcessMemory, p.memory, "MiB")
		if err := x.add(x.at, &r, pid, nvml.ProcessMemory); err != nil {
			return err
		}
	}
	return nil
}

package nvml

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// smi is the nvidia-smi program, for where the library cannot be had. Every Read
// runs it once for all GPUs, and once more if there are MIG devices among them. A
// run takes tens of milliseconds or more.
type smi struct {
	run    func(args ...string) ([]byte, error)
	stop   context.CancelFunc // ends the runs under way
	driver string

	mu       sync.Mutex
	unknown  map[string]bool // fields that this nvidia-smi does not have
	answered map[string]bool // GPUs, by UUID, that have told their own memory
}

// smiColumn is a field of --query-gpu, and what it is as a quantity.
type smiColumn struct {
	field    string
	quantity Quantity
	scale    float64
}

const smiMiB = float64(alloc.MiB)

var smiColumns = []smiColumn{
	{"memory.total", MemoryTotal, smiMiB},
	{"memory.used", MemoryUsed, smiMiB},
	{"memory.free", MemoryFree, smiMiB},
	{"memory.reserved", DriverReserved, smiMiB}, // unknown to drivers before R510
	{"utilization.gpu", Utilization, 1},
	{"power.draw", Power, 1},
	{"temperature.gpu", Temperature, 1},
	{"fan.speed", FanSpeed, 1},
	{"clocks.gr", ClockGraphics, 1},
	{"clocks.mem", ClockMemory, 1},
	{"clocks.sm", ClockSM, 1},
	{"clocks.video", ClockVideo, 1}, // unknown to R352
}

// openSMI opens the nvidia-smi program, found in PATH if path is empty. Close ends
// the runs of it that are under way. Its error is ErrNotAvailable.
func openSMI(path string) (Source, error) {
	if path == "" {
		path = "nvidia-smi"
	}
	full, err := exec.LookPath(path)
	if err != nil {
		return nil, notAvailable("there is no %s to run", path)
	}
	ctx, stop := context.WithCancel(context.Background())
	s, err := newSMI(func(args ...string) ([]byte, error) { return runSMI(ctx, full, args) })
	if err != nil {
		stop()
		return nil, err
	}
	s.stop = stop
	return s, nil
}

func newSMI(run func(...string) ([]byte, error)) (*smi, error) {
	s := &smi{run: run, stop: func() {}, unknown: make(map[string]bool), answered: make(map[string]bool)}
	rows, _, err := s.query("index", "driver_version")
	if err != nil {
		return nil, notAvailable("%v", err)
	}
	if len(rows) > 0 {
		s.driver = rows[0]["driver_version"]
	}
	return s, nil
}

func (s *smi) Name() string { return "nvidia-smi, driver " + s.driver }

func (s *smi) Close() error {
	s.stop()
	return nil
}

// query asks for fields of all GPUs. Fields that this nvidia-smi does not have are
// left out, now and later. Lines that are no rows are messages.
func (s *smi) query(fields ...string) (rows []smiRow, messages []string, err error) {
	for {
		asked := s.have(fields)
		out, err := s.run("--query-gpu="+strings.Join(asked, ","), "--format=csv,noheader,nounits")
		if field := unknownField(err); field != "" && len(asked) > 1 && slices.Contains(asked, field) {
			s.mu.Lock()
			s.unknown[field] = true
			s.mu.Unlock()
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		rows, messages := parseRows(out, asked)
		return rows, messages, nil
	}
}

func (s *smi) have(fields []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(fields), func(f string) bool { return s.unknown[f] })
}

// Devices lists a GPU that does not answer too, as the library does.
func (s *smi) Devices() ([]Device, error) {
	rows, messages, err := s.query("index", "uuid", "pci.bus_id", "mig.mode.current", "name")
	if err != nil {
		return nil, err
	}
	devices := devicesOf(rows, messages)
	for _, row := range rows {
		if row["mig.mode.current"] == "Enabled" {
			return s.withMIG(devices), nil
		}
	}
	return devices, nil
}

var errNoRow = errors.New("nvidia-smi has no row for this GPU")

// Read matches rows to devices by UUID, so that a row that is missing is a gap
// in that device's series, and shifts no other's.
func (s *smi) Read(devices []Device, wanted []Quantity, into []Reading) {
	want := setOf(wanted...)
	columns := wantedColumns(want)
	fields := []string{"index", "uuid", "pci.bus_id", "mig.mode.current"}
	for _, c := range columns {
		fields = append(fields, c.field)
	}
	rows, messages, err := s.query(fields...)
	keys := keysOf(rows)
	hasMIG := false
	for i, d := range devices {
		into[i].reset(d)
		at := slices.Index(keys, d.UUID)
		switch {
		case d.Parent != "":
			hasMIG = true
		case err != nil:
			into[i].Err = err
		case at < 0:
			into[i].Err = messageOn(d, messages)
		default:
			s.readRow(&into[i], d.UUID, rows[at], columns, want)
		}
	}
	if hasMIG {
		s.readMIG(devices, want, into)
	}
}

func wantedColumns(want quantitySet) []smiColumn {
	var columns []smiColumn
	for _, c := range smiColumns {
		judges := c.quantity == MemoryTotal || c.quantity == MemoryUsed // whether there is memory at all
		if want.has(c.quantity) || judges && want&memoryQuants != 0 {
			columns = append(columns, c)
		}
	}
	return columns
}

func (s *smi) readRow(r *Reading, uuid string, row smiRow, columns []smiColumn, want quantitySet) {
	for _, c := range columns {
		text := row[c.field]
		if v, ok := parseNumber(text, c.quantity); ok {
			r.Set(c.quantity, v*c.scale)
		} else if strings.Contains(text, "GPU is lost") {
			r.Err = fmt.Errorf("nvidia-smi: %w", ErrLost)
		}
	}
	if want&memoryQuants == 0 || r.Err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, ok := r.Value(MemoryUsed); {
	case ok:
		s.answered[uuid] = true
	case !s.answered[uuid] && sharesHostMemory(row, r.Name):
		readHost(r)
	default:
		r.Err = notReported("memory.used", row["memory.used"])
	}
}

// sharesHostMemory reports whether a GPU has no memory of its own: it has no such
// value at all, and is of a kind that uses the machine's. One in MIG mode has a total. A card that
// fails to tell its values has memory of its own all the same.
func sharesHostMemory(row smiRow, name string) bool {
	return notSupported(row["memory.used"]) && notSupported(row["memory.total"]) && row["mig.mode.current"] != "Enabled" &&
		slices.ContainsFunc(integrated, func(kind string) bool { return strings.Contains(name, kind) })
}

// integrated are in the names of NVIDIA's GPUs that use the machine's memory: DGX Spark, and Jetson.
var integrated = []string{"GB10", "Jetson", "Tegra", "Xavier", "Orin", "Thor", "nvgpu"}

func (s *smi) Processes(d Device) (map[int]alloc.Bytes, error) {
	if d.Parent != "" {
		return s.processesOfMIG(d)
	}
	fields := []string{"gpu_uuid", "gpu_bus_id", "pid", "used_memory"}
	out, err := s.run("--query-compute-apps="+strings.Join(fields, ","), "--format=csv,noheader,nounits")
	if err != nil {
		return nil, err
	}
	rows, _ := parseRows(out, fields)
	list := make(map[int]alloc.Bytes)
	for _, row := range rows {
		if row["gpu_uuid"] != d.UUID && unknownPrefix+row["gpu_bus_id"] != d.UUID {
			continue
		}
		addProcess(list, row["pid"], row["used_memory"])
	}
	return list, nil
}

const (
	// A driver in trouble can hang nvidia-smi, so a run has a limit.
	smiLimit = 20 * time.Second
	// smiWarning is its exit code when a GPU's infoROM is corrupted. All rows are
	// printed all the same.
	smiWarning = 14
)

// runSMI runs the program in the C locale, in which numbers have decimal points.
func runSMI(ctx context.Context, path string, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, smiLimit)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stderr = &stderr
	cmd.WaitDelay = 100 * time.Millisecond // a wrapper's child may hold the pipe
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.ExitCode() == smiWarning && len(out) > 0 {
		return out, nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, fmt.Errorf("nvidia-smi: no answer in %v: the driver may hang", smiLimit)
	}
	// It tells its errors on either stream.
	text, _, _ := strings.Cut(strings.TrimSpace(stderr.String()+string(out)), "\n")
	return nil, fmt.Errorf("nvidia-smi: %w: %s", err, text)
}

var invalidField = regexp.MustCompile(`Field "([^"]+)" is not a valid field to query`)

// unknownField returns the field that an error says nvidia-smi does not have, or "".
func unknownField(err error) string {
	if err == nil {
		return ""
	}
	if found := invalidField.FindStringSubmatch(err.Error()); found != nil {
		return found[1]
	}
	return ""
}

// smiRow is a line of nvidia-smi's CSV, by the names of its fields.
type smiRow map[string]string

// parseRows splits lines at ", ", which separates fields in any locale; a
// decimal comma has no blank after it. The last field may hold anything. A line with
// too few fields is a message: a warning, or a GPU that does not answer.
func parseRows(out []byte, fields []string) (rows []smiRow, messages []string) {
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		cells := strings.SplitN(line, ", ", len(fields))
		if len(cells) < len(fields) {
			cells = strings.Split(line, ",")
		}
		switch {
		case line == "":
		case len(cells) != len(fields):
			messages = append(messages, line)
		default:
			row := make(smiRow, len(fields))
			for i, name := range fields {
				row[name] = strings.Trim(strings.TrimSpace(cells[i]), `"`)
			}
			rows = append(rows, row)
		}
	}
	return rows, messages
}

// keysOf returns what tells the GPUs of the rows apart: their UUIDs, as far as they can.
func keysOf(rows []smiRow) []string {
	count := make(map[string]int)
	for _, row := range rows {
		count[row["uuid"]]++
	}
	keys := make([]string, len(rows))
	for i, row := range rows {
		keys[i] = row["uuid"]
		if count[keys[i]] > 1 || keys[i] == "" || strings.HasPrefix(keys[i], "[") {
			keys[i] = unknownPrefix + row["pci.bus_id"]
		}
	}
	return keys
}

// deafGPU matches the message in place of a GPU's row, with its number, which not
// every version prints, and its place on the bus.
var deafGPU = regexp.MustCompile(`device handle for (?:GPU ?(\d*):? ?)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])`)

func devicesOf(rows []smiRow, messages []string) []Device {
	var devices []Device
	used := make(map[int]bool)
	for i, key := range keysOf(rows) {
		index, err := strconv.Atoi(rows[i]["index"])
		if err != nil {
			continue
		}
		used[index] = true
		devices = append(devices, Device{Index: index, UUID: key, Name: rows[i]["name"], BusID: rows[i]["pci.bus_id"]})
	}
	for _, text := range messages {
		found := deafGPU.FindStringSubmatch(text)
		if found == nil {
			continue
		}
		index, err := strconv.Atoi(found[1])
		for ; err != nil && used[index]; index++ { // the first free number
		}
		used[index] = true
		devices = append(devices, Device{Index: index, Name: deafName, UUID: unknownPrefix + found[2], BusID: found[2]})
	}
	slices.SortStableFunc(devices, func(a, b Device) int { return cmp.Compare(a.Index, b.Index) })
	return devices
}

// messageOn returns what nvidia-smi says of a GPU in place of its row.
func messageOn(d Device, messages []string) error {
	place := strings.TrimLeft(d.BusID, "0")
	for _, text := range messages {
		if place == "" || !strings.Contains(text, place) {
			continue
		}
		if strings.Contains(text, "GPU is lost") {
			return fmt.Errorf("nvidia-smi: %w: %s", ErrLost, text)
		}
		return fmt.Errorf("nvidia-smi: %s", text)
	}
	return errNoRow
}

// parseNumber reads a number, also one with a decimal comma. It returns false for words in brackets, and
// for values that the quantity cannot have.
func parseNumber(text string, q Quantity) (float64, bool) {
	v, err := strconv.ParseFloat(strings.Replace(text, ",", ".", 1), 64)
	if err != nil || math.IsNaN(v) || math.Abs(v) > math.MaxInt64/smiMiB || v < 0 && q != Temperature {
		return 0, false
	}
	return v, true
}

func notSupported(text string) bool {
	switch strings.Trim(text, "[]") {
	case "N/A", "Not Supported":
		return true
	}
	return false
}

// notReported returns what a field has in place of a number.
func notReported(field, text string) error {
	switch {
	case strings.Contains(text, "Insufficient Permissions"):
		return fmt.Errorf("nvidia-smi: %s: %w", field, errNoPermission)
	case notSupported(text):
		return fmt.Errorf("nvidia-smi: %s: %w", field, errNotSupported)
	}
	return fmt.Errorf("nvidia-smi: %s is not a number: %q", field, text)
}

// addProcess adds a process to a list, to what it has already. If its memory is not a number, it is unknown.
func addProcess(list map[int]alloc.Bytes, pid, memory string) {
	n, err := strconv.Atoi(pid)
	if err != nil || n <= 0 || n > maxPID {
		return
	}
	mib, ok := parseNumber(memory, ProcessMemory)
	if before := list[n]; !ok || before < 0 {
		list[n] = -1
	} else {
		list[n] = before + alloc.Bytes(mib*smiMiB)
	}
}

// What nvidia-smi -L prints of a GPU, and of each of its MIG devices.
var (
	listedGPU = regexp.MustCompile(`^GPU \d+: (.*) \(UUID: (\S+)\)`)
	listedMIG = regexp.MustCompile(`^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (\S+)\)`)
)

// withMIG puts MIG devices behind their GPUs. Those that cannot be listed are left out.
func (s *smi) withMIG(gpus []Device) []Device {
	out, err := s.run("-L")
	if err != nil {
		return gpus
	}
	parts := migDevices(string(out), gpus)
	var devices []Device
	for _, gpu := range gpus {
		devices = append(append(devices, gpu), parts[gpu.UUID]...)
	}
	return devices
}

// migDevices reads the list of nvidia-smi -L, by the GPU's UUID.
func migDevices(list string, gpus []Device) map[string][]Device {
	found := make(map[string][]Device)
	var parent *Device
	for line := range strings.Lines(list) {
		if gpu := listedGPU.FindStringSubmatch(line); gpu != nil {
			parent = nil
			if i := slices.IndexFunc(gpus, func(d Device) bool { return d.UUID == gpu[2] }); i >= 0 {
				parent = &gpus[i]
			}
		}
		mig := listedMIG.FindStringSubmatch(line)
		if mig == nil || parent == nil {
			continue
		}
		number, err := strconv.Atoi(mig[2])
		if err != nil {
			continue
		}
		found[parent.UUID] = append(found[parent.UUID], Device{
			Index: parent.Index, UUID: mig[3], Name: parent.Name + " MIG " + mig[1],
			BusID: parent.BusID, Parent: parent.UUID, MIG: number + 1,
		})
	}
	return found
}

// smiLog is the part of nvidia-smi -q -x that only this form has: MIG devices'
// memory and processes.
type smiLog struct {
	GPUs []struct {
		UUID      string   `xml:"uuid"`
		MIG       []smiMIG `xml:"mig_devices>mig_device"`
		Processes []struct {
			Instance string `xml:"gpu_instance_id"`
			Compute  string `xml:"compute_instance_id"`
			PID      string `xml:"pid"`
			Memory   string `xml:"used_memory"`
		} `xml:"processes>process_info"`
	} `xml:"gpu"`
}

type smiMIG struct {
	Index    int    `xml:"index"`
	Instance string `xml:"gpu_instance_id"`
	Compute  string `xml:"compute_instance_id"`
	Memory   struct {
		Total    string `xml:"total"`
		Reserved string `xml:"reserved"`
		Used     string `xml:"used"`
		Free     string `xml:"free"`
	} `xml:"fb_memory_usage"`
}

func (s *smi) log() (*smiLog, error) {
	out, err := s.run("-q", "-x")
	if err != nil {
		return nil, err
	}
	log := new(smiLog)
	if err := xml.Unmarshal(out, log); err != nil {
		return nil, fmt.Errorf("nvidia-smi -q -x: %w", err)
	}
	return log, nil
}

// find returns the places of a MIG device in the log: its GPU's and its own there.
func (l *smiLog) find(d Device) (gpu, mig int, err error) {
	for gpu, g := range l.GPUs {
		if g.UUID != d.Parent {
			continue
		}
		mig = slices.IndexFunc(g.MIG, func(m smiMIG) bool { return m.Index == d.MIG-1 })
		if mig >= 0 {
			return gpu, mig, nil
		}
	}
	return 0, 0, errNoMIG
}

var errNoMIG = errors.New("nvidia-smi does not list this MIG device any more")

// readMIG reads the memory of the MIG devices among devices: they have no sensors.
func (s *smi) readMIG(devices []Device, want quantitySet, into []Reading) {
	if want&memoryQuants == 0 {
		return
	}
	log, err := s.log()
	for i, d := range devices {
		if d.Parent == "" {
			continue
		}
		if into[i].Err = err; err != nil {
			continue
		}
		gpu, mig, err := log.find(d)
		if err != nil {
			into[i].Err = err
			continue
		}
		m := log.GPUs[gpu].MIG[mig].Memory
		for q, text := range map[Quantity]string{MemoryTotal: m.Total, MemoryUsed: m.Used, MemoryFree: m.Free, DriverReserved: m.Reserved} {
			if v, ok := parseNumber(strings.TrimSuffix(text, " MiB"), q); ok {
				into[i].Set(q, v*smiMiB)
			}
		}
		if _, ok := into[i].Value(MemoryUsed); !ok {
			into[i].Err = notReported("fb_memory_usage", m.Used)
		}
	}
}

func (s *smi) processesOfMIG(d Device) (map[int]alloc.Bytes, error) {
	log, err := s.log()
	if err != nil {
		return nil, err
	}
	gpu, mig, err := log.find(d)
	if err != nil {
		return nil, err
	}
	m := log.GPUs[gpu].MIG[mig]
	list := make(map[int]alloc.Bytes)
	for _, p := range log.GPUs[gpu].Processes {
		if p.Instance != m.Instance || p.Compute != m.Compute {
			continue
		}
		addProcess(list, p.PID, strings.TrimSuffix(p.Memory, " MiB"))
	}
	return list, nil
}

package nvml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
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
// left out, now and later. Lines that are no rows are remarks.
func (s *smi) query(fields ...string) (rows []smiRow, remarks []string, err error) {
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
		rows, remarks := parseRows(out, asked)
		return rows, remarks, nil
	}
}

func (s *smi) have(fields []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(fields), func(f string) bool { return s.unknown[f] })
}

// Devices lists a GPU that does not answer too, as the library does.
func (s *smi) Devices() ([]Device, error) {
	rows, remarks, err := s.query("index", "uuid", "pci.bus_id", "mig.mode.current", "name")
	if err != nil {
		return nil, err
	}
	devices := devicesOf(rows, remarks)
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
	rows, remarks, err := s.query(fields...)
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
			into[i].Err = remarkOn(d, remarks)
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
		if v, ok := figure(text, c.quantity); ok {
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
		r.Err = noFigureIn("memory.used", row["memory.used"])
	}
}

// sharesHostMemory reports whether a GPU has no memory of its own: it has no such
// figure at all, and is of a kind that uses the machine's. One in MIG mode has a total. A card that
// fails to tell its figures has memory of its own all the same.
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

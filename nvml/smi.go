package nvml

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// smi is the nvidia-smi program, asked in its CSV mode: where the library cannot be had.
// Every Read runs it once for all devices, which takes tens of milliseconds or
// more. It shows no MIG devices.
type smi struct {
	path    string
	run     func(args ...string) ([]byte, error)
	driver  string
	columns []smiColumn
}

// smiColumn is a property of --query-gpu, and what it is as a quantity.
type smiColumn struct {
	property string
	quantity Quantity
	scale    float64
}

const smiMiB = float64(alloc.MiB)

var smiColumns = []smiColumn{
	{"memory.total", MemoryTotal, smiMiB},
	{"memory.used", MemoryUsed, smiMiB},
	{"memory.free", MemoryFree, smiMiB},
	{"utilization.gpu", Utilization, 1},
	{"power.draw", Power, 1},
	{"temperature.gpu", Temperature, 1},
	{"fan.speed", FanSpeed, 1},
	{"clocks.gr", ClockGraphics, 1},
	{"clocks.mem", ClockMemory, 1},
	{"clocks.sm", ClockSM, 1},
	{"clocks.video", ClockVideo, 1},
	{"memory.reserved", DriverReserved, smiMiB}, // unknown to drivers before R510
}

// OpenSMI opens the nvidia-smi program, found in PATH if path is empty.
func OpenSMI(path string) (Source, error) {
	if path == "" {
		path = "nvidia-smi"
	}
	full, err := exec.LookPath(path)
	if err != nil {
		return nil, notAvailable("there is no %s to run", path)
	}
	return newSMI(full, func(args ...string) ([]byte, error) { return runSMI(full, args) })
}

func newSMI(path string, run func(...string) ([]byte, error)) (*smi, error) {
	s := &smi{path: path, run: run, columns: smiColumns}
	rows, err := s.query("--query-gpu=driver_version")
	if err != nil {
		return nil, notAvailable("%v", err)
	}
	if len(rows) > 0 {
		s.driver = rows[0][0]
	}
	if _, err := s.query("--query-gpu=memory.reserved"); err != nil {
		s.columns = smiColumns[:len(smiColumns)-1]
	}
	return s, nil
}

// runSMI runs the program. A driver in trouble can hang it, so it has a limit.
func runSMI(path string, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	// It tells its errors on either stream.
	text := strings.TrimSpace(stderr.String() + string(out))
	if line, _, more := strings.Cut(text, "\n"); more {
		text = line
	}
	return out, fmt.Errorf("nvidia-smi: %w: %s", err, text)
}

// query returns the rows of a query, each with its fields trimmed.
func (s *smi) query(what string) ([][]string, error) {
	out, err := s.run(what, "--format=csv,noheader,nounits")
	if err != nil {
		return nil, err
	}
	return parseSMI(out)
}

func parseSMI(out []byte) ([][]string, error) {
	r := csv.NewReader(bytes.NewReader(out))
	r.TrimLeadingSpace = true
	r.FieldsPerRecord = -1
	r.LazyQuotes = true
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: its answer is no CSV: %w", err)
	}
	for _, row := range rows {
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
	}
	return rows, nil
}

func (s *smi) Name() string { return "nvidia-smi, driver " + s.driver }
func (s *smi) Close() error { return nil }

func (s *smi) Devices() ([]Device, error) {
	rows, err := s.query("--query-gpu=index,uuid,name,pci.bus_id")
	if err != nil {
		return nil, err
	}
	devices := make([]Device, 0, len(rows))
	for _, row := range rows {
		if len(row) != 4 {
			continue // a remark in place of a row: a GPU that does not answer
		}
		index, err := strconv.Atoi(row[0])
		if err != nil {
			continue
		}
		devices = append(devices, Device{Index: index, UUID: row[1], Name: row[2], BusID: row[3]})
	}
	return devices, nil
}

var errNoRow = errors.New("nvidia-smi has no row for this GPU")

// Read matches rows to devices by UUID, so that a row that is missing is a gap
// in that device's series, and shifts no other's.
func (s *smi) Read(devices []Device, want Quantities, into []Reading) {
	columns := s.wanted(want)
	properties := []string{"uuid"}
	for _, c := range columns {
		properties = append(properties, c.property)
	}
	rows, err := s.query("--query-gpu=" + strings.Join(properties, ","))
	for i := range devices {
		into[i].Reset()
		if into[i].Err = err; err == nil {
			readRow(&into[i], rowOf(rows, devices[i].UUID, len(properties)), columns, want)
		}
	}
}

func (s *smi) wanted(want Quantities) []smiColumn {
	var columns []smiColumn
	for _, c := range s.columns {
		if want.Has(c.quantity) || want&memoryQuants != 0 && c.quantity == MemoryUsed {
			columns = append(columns, c)
		}
	}
	return columns
}

func rowOf(rows [][]string, uuid string, fields int) []string {
	for _, row := range rows {
		if row[0] == uuid && len(row) == fields {
			return row[1:]
		}
	}
	return nil
}

func readRow(r *Reading, row []string, columns []smiColumn, want Quantities) {
	if row == nil {
		r.Err = errNoRow
		return
	}
	for i, c := range columns {
		// "[N/A]", "[Not Supported]", "[GPU is lost]" and their like are no numbers.
		if v, err := strconv.ParseFloat(row[i], 64); err == nil {
			r.Set(c.quantity, v*c.scale)
		} else if strings.Contains(row[i], "GPU is lost") {
			r.Err = fmt.Errorf("nvidia-smi: %w", ErrLost)
		}
	}
	if _, ok := r.Value(MemoryUsed); !ok && want&memoryQuants != 0 && r.Err == nil {
		readHost(r)
	}
}

func (s *smi) Processes(d Device) ([]Process, error) {
	rows, err := s.query("--query-compute-apps=gpu_uuid,pid,used_memory")
	if err != nil {
		return nil, err
	}
	var list []Process
	for _, row := range rows {
		if len(row) != 3 || row[0] != d.UUID {
			continue
		}
		pid, err := strconv.Atoi(row[1])
		if err != nil {
			continue
		}
		p := Process{PID: pid, Memory: -1}
		if mib, err := strconv.ParseFloat(row[2], 64); err == nil {
			p.Memory = alloc.Bytes(mib * smiMiB)
		}
		list = append(list, p)
	}
	return list, nil
}

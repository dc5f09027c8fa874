package nvml

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// smiRow is a line of nvidia-smi's CSV, by the names of its fields.
type smiRow map[string]string

// parseRows splits lines at ", ", which separates fields in any locale; a
// decimal comma has no blank after it. The last field may hold anything. A line with
// too few fields is a remark: a warning, or a GPU that does not answer.
func parseRows(out []byte, fields []string) (rows []smiRow, remarks []string) {
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		cells := strings.SplitN(line, ", ", len(fields))
		if len(cells) < len(fields) {
			cells = strings.Split(line, ",")
		}
		switch {
		case line == "":
		case len(cells) != len(fields):
			remarks = append(remarks, line)
		default:
			row := make(smiRow, len(fields))
			for i, name := range fields {
				row[name] = strings.Trim(strings.TrimSpace(cells[i]), `"`)
			}
			rows = append(rows, row)
		}
	}
	return rows, remarks
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

// deafGPU matches the remark in place of a GPU's row, with its number, which not
// every version prints, and its place on the bus.
var deafGPU = regexp.MustCompile(`device handle for (?:GPU ?(\d*):? ?)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])`)

func devicesOf(rows []smiRow, remarks []string) []Device {
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
	for _, text := range remarks {
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

// remarkOn returns what nvidia-smi says of a GPU in place of its row.
func remarkOn(d Device, remarks []string) error {
	place := strings.TrimLeft(d.BusID, "0")
	for _, text := range remarks {
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

// figure reads a number, also one with a decimal comma. It returns false for words in brackets, and
// for values that the quantity cannot have.
func figure(text string, q Quantity) (float64, bool) {
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

// noFigureIn returns what a field has in place of a number.
func noFigureIn(field, text string) error {
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
	mib, ok := figure(memory, ProcessMemory)
	if before := list[n]; !ok || before < 0 {
		list[n] = -1
	} else {
		list[n] = before + alloc.Bytes(mib*smiMiB)
	}
}

package nvml

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// drm is what the kernel itself tells of AMD and Intel GPUs, without a vendor's library: devices
// in /sys/class/drm, processes in /proc/PID/fdinfo. A value that a driver does not tell is missing.
type drm struct {
	root  string // root of both file systems: "/", or a folder in a test
	cards []drmCard

	mu   sync.Mutex
	scan drmScan // the last look at all processes
}

type drmCard struct {
	Device
	driver string
	folder string // /sys/class/drm/card0
	hwmon  string // "" without sensors
}

// drmDrivers are the drivers whose files this package can read. Other drivers, such as that of a
// server's plain display, have no GPUs to watch.
var drmDrivers = []string{"amdgpu", "i915", "xe"}

// openDRM opens what the kernel tells of AMD and Intel GPUs, below root, or "/" if root is empty;
// with the host's files mounted at /host, root is "/host". Its error is ErrNotAvailable.
func openDRM(root string) (Source, error) {
	root = cmp.Or(root, "/")
	folders, err := filepath.Glob(filepath.Join(root, "sys/class/drm/card[0-9]*"))
	if err != nil {
		return nil, notAvailable("%s: %v", root, err)
	}
	s := &drm{root: root}
	for _, folder := range folders {
		if card, ok := s.card(folder); ok {
			s.cards = append(s.cards, card)
		}
	}
	if len(s.cards) == 0 {
		return nil, notAvailable("no AMD or Intel GPU is in %s", filepath.Join(root, "sys/class/drm"))
	}
	slices.SortStableFunc(s.cards, func(a, b drmCard) int { return cmp.Compare(a.BusID, b.BusID) })
	for i := range s.cards {
		s.cards[i].Index = i
	}
	return s, nil
}

// card reads the facts about a card that do not change. Connectors, such as card0-DP-1, are not
// cards.
func (s *drm) card(folder string) (drmCard, bool) {
	c := drmCard{folder: folder}
	if strings.Contains(filepath.Base(folder), "-") {
		return c, false
	}
	about := fieldsOf(filepath.Join(folder, "device/uevent"), "=")
	c.driver, c.BusID = about["DRIVER"], about["PCI_SLOT_NAME"]
	if c.BusID == "" || !slices.Contains(drmDrivers, c.driver) {
		return c, false
	}
	c.UUID = "PCI-" + c.BusID
	if id := textOf(filepath.Join(folder, "device/unique_id")); id != "" {
		c.UUID = "GPU-" + id
	}
	if c.Name = textOf(filepath.Join(folder, "device/product_name")); c.Name == "" {
		c.Name = s.pciName(about["PCI_ID"])
	}
	if found, _ := filepath.Glob(filepath.Join(folder, "device/hwmon/hwmon*")); len(found) > 0 {
		c.hwmon = found[0]
	}
	return c, true
}

// pciName returns a device's name for its PCI numbers, "1002:744C", from the list in Linux
// distributions.
func (s *drm) pciName(id string) string {
	vendor, device, _ := strings.Cut(strings.ToLower(id), ":")
	maker := map[string]string{"1002": "AMD", "8086": "Intel"}[vendor]
	for _, name := range []string{"usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids"} {
		f, err := os.Open(filepath.Join(s.root, name))
		if err != nil {
			continue
		}
		defer f.Close()
		ofVendor := false
		for lines := bufio.NewScanner(f); lines.Scan(); {
			line := lines.Text()
			if line != "" && line[0] != '\t' && line[0] != '#' {
				ofVendor = strings.HasPrefix(line, vendor+" ")
			} else if name, ok := strings.CutPrefix(line, "\t"+device+"  "); ok && ofVendor {
				return strings.TrimSpace(maker + " " + name)
			}
		}
	}
	return strings.TrimSpace(maker + " GPU " + strings.ToLower(id))
}

// Name names the source, and says if only this user's processes are seen: the kernel shows the files of other users to root alone.
func (s *drm) Name() string {
	var drivers []string
	for _, c := range s.cards {
		if !slices.Contains(drivers, c.driver) {
			drivers = append(drivers, c.driver)
		}
	}
	name := "DRM: " + strings.Join(drivers, ", ")
	if os.Geteuid() > 0 {
		name += "; processes of other users are not seen"
	}
	return name
}

func (s *drm) Close() error { return nil }

func (s *drm) Devices() ([]Device, error) {
	devices := make([]Device, len(s.cards))
	for i, c := range s.cards {
		devices[i] = c.Device
	}
	return devices, nil
}

func (s *drm) Read(devices []Device, wanted []Quantity, into []Reading) {
	want := setOf(wanted...)
	for i, d := range devices {
		into[i].reset(d)
		at := slices.IndexFunc(s.cards, func(c drmCard) bool { return c.UUID == d.UUID })
		switch {
		case at < 0:
			into[i].Err = fmt.Errorf("%s: %w", d.UUID, ErrNoDevice)
		case !exists(s.cards[at].folder):
			into[i].Err = fmt.Errorf("%s is gone: %w", s.cards[at].folder, ErrLost)
		default:
			s.cards[at].read(want, &into[i])
		}
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return !errors.Is(err, os.ErrNotExist)
}

// drmFiles are the files in which drivers keep their values. Of several for one value the first that exists counts. "hwmon"
// stands for the card's sensors. amdgpu has all of them; xe and i915 do not say how much of a card's memory is used.
var drmFiles = []struct {
	quantity Quantity
	file     string
	scale    float64
}{
	{MemoryTotal, "device/mem_info_vram_total", 1},
	{MemoryTotal, "device/tile*/physical_vram_size_bytes", 1}, // xe: each tile has its part
	{MemoryTotal, "lmem_total_bytes", 1},                      // i915
	{MemoryUsed, "device/mem_info_vram_used", 1},
	{Utilization, "device/gpu_busy_percent", 1},
	{Power, "hwmon/power1_average", 1e-6},
	{Power, "hwmon/power1_input", 1e-6},
	{Temperature, "hwmon/temp1_input", 1e-3},
	{Temperature, "hwmon/temp2_input", 1e-3}, // xe: the package
	{FanSpeed, "hwmon/pwm1", 100. / 255},
	{ClockGraphics, "hwmon/freq1_input", 1e-6},
	{ClockGraphics, "device/tile0/gt0/freq0/act_freq", 1}, // xe
	{ClockGraphics, "gt_act_freq_mhz", 1},                 // i915
	{ClockMemory, "hwmon/freq2_input", 1e-6},
}

func (c *drmCard) read(want quantitySet, r *Reading) {
	if want.has(MemoryFree) {
		want |= setOf(MemoryTotal, MemoryUsed)
	}
	for _, f := range drmFiles {
		if _, known := r.Value(f.quantity); known || !want.has(f.quantity) {
			continue
		}
		name := filepath.Join(c.folder, f.file)
		if sensor, ok := strings.CutPrefix(f.file, "hwmon/"); ok {
			if c.hwmon == "" {
				continue
			}
			name = filepath.Join(c.hwmon, sensor)
		}
		if v, ok := sumOf(name); ok {
			r.Set(f.quantity, v*f.scale)
		}
	}
	total, ok := r.Value(MemoryTotal)
	used, ok2 := r.Value(MemoryUsed)
	if ok && ok2 && want.has(MemoryFree) {
		r.Set(MemoryFree, max(0, total-used))
	}
}

// sumOf adds up the numbers in the files of a pattern. One that cannot be read makes the sum unknown.
func sumOf(pattern string) (sum float64, ok bool) {
	names := []string{pattern}
	if strings.Contains(pattern, "*") {
		names, _ = filepath.Glob(pattern)
	}
	for _, name := range names {
		n, err := strconv.ParseUint(textOf(name), 10, 63)
		if err != nil {
			return 0, false
		}
		sum += float64(n)
	}
	return sum, len(names) > 0
}

// textOf returns the text of a file of one line, or "" if it cannot be read.
func textOf(name string) string {
	b, _ := os.ReadFile(name)
	return strings.TrimSpace(string(b))
}

// fieldsOf reads a file of lines such as "drm-client-id: 3". It is nil if there is no such file.
func fieldsOf(name, separator string) map[string]string {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	fields := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, separator); ok {
			fields[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return fields
}

// drmScan is one look at the open files of all processes. It can answer once for each device.
type drmScan struct {
	at   time.Time
	have map[string]map[int]alloc.Bytes // by PCI address; a list is removed when it has been returned once
}

// drmScanAge is how old a look may be that serves a second device.
const drmScanAge = 100 * time.Millisecond

// Processes lists the processes that have the device's file open, by their numbers in this PID
// namespace. A process for which the driver gives no value, as with memory that belongs to the
// host, is listed without one.
func (s *drm) Processes(d Device) (map[int]alloc.Bytes, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, ok := s.scan.have[d.BusID]
	if !ok || time.Since(s.scan.at) > drmScanAge {
		have, err := s.clients()
		if err != nil {
			return nil, err
		}
		s.scan = drmScan{time.Now(), have}
		list = have[d.BusID]
	}
	delete(s.scan.have, d.BusID)
	return list, nil
}

// drmClient is an open file of a device, whatever the number of its copies.
type drmClient struct{ busID, id string }

// clients looks at all processes. Copies of an open file, within a process or in its children, are
// one client. It counts for the process with the lowest number.
func (s *drm) clients() (map[string]map[int]alloc.Bytes, error) {
	pids, err := s.pids()
	if err != nil {
		return nil, err
	}
	have := make(map[string]map[int]alloc.Bytes)
	for _, c := range s.cards {
		have[c.BusID] = make(map[int]alloc.Bytes)
	}
	seen := make(map[drmClient]bool)
	for _, pid := range pids {
		for busID, memory := range s.clientsOf(pid, seen) {
			if _, ours := have[busID]; ours {
				have[busID][pid] = memory
			}
		}
	}
	return have, nil
}

func (s *drm) pids() ([]int, error) {
	entries, err := os.ReadDir(filepath.Join(s.root, "proc"))
	if err != nil {
		return nil, fmt.Errorf("listing the processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// clientsOf adds up the memory of one process by device; -1 is an unknown amount. A process that has ended,
// or is another user's, has none.
func (s *drm) clientsOf(pid int, seen map[drmClient]bool) map[string]alloc.Bytes {
	folder := filepath.Join(s.root, "proc", strconv.Itoa(pid))
	files, err := os.ReadDir(filepath.Join(folder, "fd"))
	if err != nil {
		return nil
	}
	var memory map[string]alloc.Bytes
	for _, f := range files {
		target, err := os.Readlink(filepath.Join(folder, "fd", f.Name()))
		if err != nil || !strings.HasPrefix(target, "/dev/dri/") {
			continue
		}
		about := fieldsOf(filepath.Join(folder, "fdinfo", f.Name()), ":")
		client := drmClient{about["drm-pdev"], about["drm-client-id"]}
		if client.busID == "" || client.id != "" && seen[client] {
			continue
		}
		seen[client] = true
		if memory == nil {
			memory = make(map[string]alloc.Bytes)
		}
		before, more := memory[client.busID], clientMemory(about)
		if memory[client.busID] = before + more; before < 0 || more < 0 {
			memory[client.busID] = -1
		}
	}
	return memory
}

// clientMemory adds up what a client has in the device's own memory, or returns -1 where the driver does not
// tell, or names no client, so that copies could not be told apart. amdgpu calls the memory vram, xe vram0 and
// on, i915 local0. On older kernels amdgpu says "drm-memory-" for "drm-resident-".
func clientMemory(about map[string]string) alloc.Bytes {
	if about["drm-client-id"] == "" {
		return -1
	}
	for _, prefix := range []string{"drm-resident-", "drm-memory-"} {
		sum, found := alloc.Bytes(0), false
		for key, text := range about {
			region, ok := strings.CutPrefix(key, prefix)
			if !ok || !strings.HasPrefix(region, "vram") && !strings.HasPrefix(region, "local") {
				continue
			}
			n, ok := drmSize(text)
			if !ok {
				return -1
			}
			sum, found = sum+n, true
		}
		if found {
			return sum
		}
	}
	return -1
}

// drmSize reads "544428 KiB". Without a unit it is bytes.
func drmSize(text string) (alloc.Bytes, bool) {
	number, unit, _ := strings.Cut(text, " ")
	scale, ok := map[string]uint64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
	n, err := strconv.ParseUint(number, 10, 63)
	if !ok || err != nil || n > 1<<62/scale {
		return 0, false
	}
	return alloc.Bytes(n * scale), true
}

// sees returns an error if a process's files cannot be read, because its memory is then unknown and
// not zero. With pid 0 it returns an error if that is so for any process.
func (s *drm) sees(pid int) error {
	pids := []int{pid}
	if pid == 0 {
		if !(systemProcesses{}).hostNumbers() {
			return errHidden
		}
		var err error
		if pids, err = s.pids(); err != nil {
			return err
		}
	}
	for _, pid := range pids {
		if _, err := os.ReadDir(filepath.Join(s.root, "proc", strconv.Itoa(pid), "fd")); errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("pid %d is another user's: %w", pid, errNoPermission)
		}
	}
	return nil
}

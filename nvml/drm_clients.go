package nvml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// drmScan is one look at the open files of all processes. It can answer once for each device.
type drmScan struct {
	at   time.Time
	have map[string]map[int]alloc.Bytes // by PCI address; a list is removed when it has been returned once
}

// drmScanAge is how old a look may be that serves a second device.
const drmScanAge = 100 * time.Millisecond

// Processes lists the processes that have the device's file open, by their numbers in this PID
// namespace. A process for which the driver gives no figure, as with memory that belongs to the
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

package host

import (
	"bytes"
	"os"
	"strconv"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// proc reads what the kernel says about this process.
type proc struct {
	statm, status procFile
}

func (p *proc) init() {
	p.statm.path, p.status.path = "/proc/self/statm", "/proc/self/status"
}

// resident reads the resident set from proc_pid_statm(5); -1 is unknown.
func (p *proc) resident() alloc.Bytes {
	// As much as the first two numbers take; the file is longer, so one call reads it.
	var buf [24]byte
	_, rest, _ := bytes.Cut(p.statm.read(buf[:]), []byte(" "))
	pages, _, _ := bytes.Cut(rest, []byte(" "))
	return inUnits(pages, pageSize)
}

var pageSize = alloc.Bytes(os.Getpagesize())

// residentAndPeak reads VmRSS and VmHWM of proc_pid_status(5), which are in units of 1024 bytes; -1
// is unknown.
func (p *proc) residentAndPeak() (now, peak alloc.Bytes) {
	var buf [4096]byte
	status := p.status.read(buf[:])
	return statusField(status, "VmRSS:"), statusField(status, "VmHWM:")
}

func statusField(status []byte, name string) alloc.Bytes {
	_, rest, _ := bytes.Cut(status, []byte("\n"+name))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	number, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
	return inUnits(number, alloc.KiB)
}

func inUnits(number []byte, unit alloc.Bytes) alloc.Bytes {
	n, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return -1
	}
	return alloc.Bytes(n) * unit
}

// resetPeak returns the high-water mark and sets it back to the present level
// (proc_pid_clear_refs(5), value 5). It returns 0 if it cannot.
func (p *proc) resetPeak(clearRefs string) alloc.Bytes {
	_, peak := p.residentAndPeak()
	if peak < 0 || os.WriteFile(clearRefs, []byte("5"), 0) != nil {
		return 0
	}
	return peak
}

func (p *proc) close() {
	p.statm.close()
	p.status.close()
}

// procFile is a file of /proc/self that stays open, since opening it takes many times as long as
// reading it. It always shows this process: a forked child runs no Go code until it calls exec,
// which closes the file.
type procFile struct {
	path   string
	opened sync.Once
	file   *os.File
}

// read fills buf from the beginning of the file. What cannot be read is empty.
func (f *procFile) read(buf []byte) []byte {
	f.opened.Do(func() { f.file, _ = os.Open(f.path) })
	n, _ := f.file.ReadAt(buf, 0)
	return buf[:n]
}

// close closes the file for good. It may be called while others read.
func (f *procFile) close() {
	f.opened.Do(func() {})
	f.file.Close()
}

package tracker

import (
	"bytes"
	"os"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// residentSet reads VmRSS and VmHWM of proc_pid_status(5); -1 is unknown. They
// are printed in kB, which are 1024 bytes there.
func residentSet() (now, peak alloc.Bytes) {
	var buf [4096]byte
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return -1, -1
	}
	defer f.Close()
	n, _ := f.Read(buf[:])
	return statusField(buf[:n], "VmRSS:"), statusField(buf[:n], "VmHWM:")
}

func statusField(status []byte, name string) alloc.Bytes {
	_, rest, ok := bytes.Cut(status, []byte("\n"+name))
	if !ok {
		return -1
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	number, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
	n, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		return -1
	}
	return alloc.Bytes(n) * alloc.KiB
}

// resetHostPeak returns the high-water mark and sets it back to the present
// level (proc_pid_clear_refs(5), value 5). It returns 0 if it cannot.
func resetHostPeak() alloc.Bytes {
	_, peak := residentSet()
	if peak < 0 || os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) != nil {
		return 0
	}
	return peak
}

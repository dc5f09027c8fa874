package gpuemu

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options describe an emulated machine, and how a process sees it. The
// zero value is one healthy device of 24 GiB.
type Options struct {
	State    string // file of the shared state; empty: one of its own for each Command or Rerun
	Devices  int    // 0 means 1; negative: no driver answers
	Memory   int64  // usable bytes of each device; 0 means 24 GiB
	Reserved int64  // 0 means 320 MiB; negative: none
	Context  int64  // 0 means 256 MiB; negative: none
	MIG      int64  // bytes of the first device's MIG instance; 0: none
	Pinned   int64  // bytes of host memory that a process can have pinned; 0 means 8 GiB
	Unit     int64  // of virtual memory, a multiple of 2 MiB; 0 means 2 MiB
	Name     string

	Fail     []Fault
	LostFrom int // the devices are lost from this process's n-th call on; 0: never
	Latency  []Delay

	Processes  ProcessView
	MemoryInfo MemoryInfo
	OldDriver  bool // an NVML of 2020, without the symbols that came later
}

// Fault makes the From-th call (the first is 1) of a function fail with the
// library's own error code. With Onward all later calls fail too.
type Fault struct {
	Function string // the symbol, as cuMemAlloc_v2; * stands for any
	From     int
	Onward   bool
	Code     int
}

// Delay is what a call of a function takes at least; an empty Function means every call.
type Delay struct {
	Function string
	Time     time.Duration
}

// ProcessView is what NVML tells of processes.
type ProcessView string

const (
	AllProcesses     ProcessView = ""
	HiddenProcesses  ProcessView = "hidden"
	HostProcesses    ProcessView = "host"
	UnsizedProcesses ProcessView = "unsized"
)

// HostPID is the pid under which HostProcesses shows a process.
func HostPID(pid int) int { return pid + 1000000 }

// MemoryInfo is which versions of NVML's memory info answer.
type MemoryInfo string

const (
	AllMemoryInfo MemoryInfo = ""
	OnlyV1        MemoryInfo = "v1"
	NoMemoryInfo  MemoryInfo = "none"
)

func (f Fault) String() string {
	plus := ""
	if f.Onward {
		plus = "+"
	}
	return fmt.Sprintf("%s:%d%s:%d", f.Function, f.From, plus, f.Code)
}

func (d Delay) String() string {
	text := strconv.FormatInt(d.Time.Nanoseconds(), 10) + "ns"
	if d.Function != "" {
		text = d.Function + ":" + text
	}
	return text
}

func joined[T fmt.Stringer](list []T) string {
	var texts []string
	for _, v := range list {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ",")
}

// sized spells a size: 0 means "as usual", a negative one means none.
func sized(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(max(n, 0), 10)
}

// Environ is this process's environment with the options and the library path
// in it, for exec.Cmd. It builds the libraries if needed.
func (o Options) Environ() ([]string, error) {
	libs, err := Build()
	if err != nil {
		return nil, err
	}
	dir := libs.Dir
	if o.OldDriver {
		dir = libs.Old
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GPUEMU_") || strings.HasPrefix(v, "LD_LIBRARY_PATH=")
	})
	env = append(env, "LD_LIBRARY_PATH="+dir)
	set := func(name, value string) {
		if value != "" {
			env = append(env, "GPUEMU_"+name+"="+value)
		}
	}
	set("STATE", o.State)
	set("DEVICES", sized(int64(o.Devices)))
	set("MEMORY", sized(o.Memory))
	set("RESERVED", sized(o.Reserved))
	set("CONTEXT", sized(o.Context))
	set("MIG", sized(o.MIG))
	set("PINNED", sized(o.Pinned))
	set("GRANULARITY", sized(o.Unit))
	set("NAME", o.Name)
	set("FAIL", joined(o.Fail))
	set("LOST", sized(int64(o.LostFrom)))
	set("LATENCY", joined(o.Latency))
	set("PROCESSES", string(o.Processes))
	set("MEMORY_INFO", string(o.MemoryInfo))
	return env, nil
}

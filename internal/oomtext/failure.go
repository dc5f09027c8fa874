package oomtext

import (
	"fmt"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/verdict"
)

const unknown alloc.Bytes = -1

// Failure is a message that memory ran out. Amounts are bytes, negative if the text does not say them.
type Failure struct {
	Line    int    // of the text, where the message begins
	Repeats int    // how often the same stands in the text again
	Source  string // who says it: "PyTorch", "llama.cpp"
	Device  string // as the message names it, such as "GPU 0"; "" if it does not
	Rank    string // "rank3", of who says so; else ""
	Purpose string // what the memory was for, such as "KV cache"; "" if that is not said
	Message string // the beginning of the message

	Requested   alloc.Bytes
	Capacity    alloc.Bytes // of the device
	Free        alloc.Bytes // as the driver said
	Allocated   alloc.Bytes // of the allocator's memory, what the program has
	Inactive    alloc.Bytes // of the allocator's memory, what the program does not have: reserved but unallocated
	Reserved    alloc.Bytes // by the allocator: both
	ThisProcess alloc.Bytes // used by the process, the allocator's included
	Beside      alloc.Bytes // of it, what is not the allocator's: context, libraries
	Others      alloc.Bytes // used by other processes
	Outside     alloc.Bytes // Beside and Others, which the message may not tell apart
	Limit       alloc.Bytes // that the program set
	Private     alloc.Bytes // of Allocated, in pools of CUDA graphs
	Processes   []Process   // other processes, where they are told

	Verdict verdict.Verdict
	Says    string   // the verdict in a sentence
	Helps   []Help   // what would help, what helps most first
	Useless []Help   // advice of the message itself that cannot help here
	Notes   []string // what a reader should know of the amounts

	judge    func(*Failure) // adds what would help
	backend  string         // the word that says which device's memory it is, such as CUDA or HIP
	bare     bool           // it says that memory ran out, and little more
	onHost   bool           // it is of the machine's memory
	advises  bool           // the message advises settings of the allocator
	conf     string         // the variable that it names for them
	settings settings
}

// Process is a process with memory on the device.
type Process struct {
	PID  int64       `json:"pid"`
	Used alloc.Bytes `json:"used_bytes"`
}

// Help is something to do, and why it helps or does not.
type Help struct {
	Do  string `json:"do"` // with the setting or the command
	Why string `json:"why,omitempty"`
}

// settings are what a log says of the allocator's settings, outside of the messages.
type settings struct {
	expandable bool // expandable_segments is on
}

// same reports whether two messages say the same of the same device and rank: programs print an error again as they pass
// it on.
func (f *Failure) same(g *Failure) bool {
	return f.Source == g.Source && f.Device == g.Device && (f.Rank == g.Rank || g.Rank == "") && f.Requested == g.Requested && f.Free == g.Free &&
		f.Allocated == g.Allocated && f.Reserved == g.Reserved && f.Capacity == g.Capacity && (f.Requested >= 0 || f.Message == g.Message || f.bare)
}

func newFailure(line int, rank string) *Failure {
	return &Failure{
		Line: line, Rank: rank,
		Requested: unknown, Capacity: unknown, Free: unknown, Allocated: unknown, Inactive: unknown, Reserved: unknown, ThisProcess: unknown,
		Beside: unknown, Others: unknown, Outside: unknown, Limit: unknown, Private: unknown,
	}
}

// split tells apart who has the memory that is not the allocator's.
func (f *Failure) split() {
	if f.ThisProcess < 0 {
		f.findThisProcess()
	}
	if f.ThisProcess >= 0 && f.Reserved >= 0 {
		f.Beside = max(0, f.ThisProcess-f.Reserved)
	}
	if f.Capacity < 0 || f.Free < 0 {
		return
	}
	used := f.Capacity - f.Free
	if f.Reserved >= 0 {
		f.Outside = max(0, used-f.Reserved)
	}
	if f.ThisProcess >= 0 {
		f.Others = max(0, used-f.ThisProcess)
	}
	if f.Reserved > used+used/64 {
		f.Notes = append(f.Notes, "more is reserved than is in use on the device: the driver keeps a part in the machine's memory, as Windows does when a device is full")
		f.Others, f.Outside = unknown, unknown
	}
}

// findThisProcess recognises the process among those that the message calls others. In a container a process does not
// know the number that the driver has for it, and PyTorch then lists it with the others.
func (f *Failure) findThisProcess() {
	if f.Capacity < 0 || f.Free < 0 || f.Reserved <= 0 {
		return
	}
	found := -1
	for i, p := range f.Processes {
		rest := f.Capacity - f.Free - p.Used
		if p.Used >= f.Reserved-f.Reserved/64 && rest < f.Reserved-f.Reserved/64 {
			if found >= 0 {
				return
			}
			found = i
		}
	}
	if found < 0 {
		return
	}
	f.ThisProcess = f.Processes[found].Used
	f.Notes = append(f.Notes, "process "+strconv.FormatInt(f.Processes[found].PID, 10)+" is this process itself: without it there is no room for what PyTorch has reserved")
	f.Processes = append(f.Processes[:found:found], f.Processes[found+1:]...)
}

// maxProcesses bounds the processes of a message that are kept.
const maxProcesses = 64

// contextBytes is what a process may hold beside its allocator without being worth a word: CUDA's context, its libraries and
// their work space. It is left out of what others could give back where a message does not tell them apart.
const contextBytes = alloc.GiB

// decide gives the verdict, and what goes with it.
func (f *Failure) decide() {
	f.Verdict = f.values().Of()
	f.Says = f.sentence()
	f.judge(f)
}

func (f *Failure) values() verdict.Values {
	v := verdict.Values{Requested: f.Requested, Capacity: f.Capacity, Free: f.Free, Inactive: f.Inactive, Reserved: f.Reserved, Outside: f.others(), Limit: f.Limit}
	if f.Reserved < 0 && f.Allocated >= 0 {
		v.Reserved = f.Allocated + max(0, f.Beside)
	}
	v.Own = f.ThisProcess > f.Capacity/2 && f.Capacity > 0
	return v
}

// others returns what could be taken from others than this process; negative if that is unknown.
func (f *Failure) others() alloc.Bytes {
	if f.Others >= 0 {
		var listed alloc.Bytes
		for _, p := range f.Processes {
			listed += p.Used
		}
		return max(f.Others, min(listed, 1<<60))
	}
	if f.Outside >= 0 {
		return max(0, f.Outside-contextBytes)
	}
	return unknown
}

// short returns what lacks beside the free memory; negative if that is unknown.
func (f *Failure) short() alloc.Bytes {
	if f.Requested < 0 || f.Free < 0 {
		return unknown
	}
	return f.values().Short()
}

// sentence says the verdict.
func (f *Failure) sentence() string {
	short := f.short()
	switch f.Verdict {
	case verdict.NoShortage:
		return fmt.Sprintf("no shortage: the driver refused %v with %v free. The device was not short of memory when the message was written.", f.Requested, f.Free)
	case verdict.Limit:
		if f.Free < 0 {
			return fmt.Sprintf("limit: the program may take %v, which the request would exceed.", f.Limit)
		}
		return fmt.Sprintf("limit: the program may take %v, which the request would exceed; %v of the device are free.", f.Limit, f.Free)
	case verdict.TooLarge:
		return fmt.Sprintf("larger than the device: no device of %v can hold %v.", f.Capacity, f.Requested)
	case verdict.Fragmented:
		return fmt.Sprintf("fragmented: %v, which would be enough, but in pieces between buffers in use.%s", f.unused(), f.butOthers())
	case verdict.OtherProcess:
		if f.Others >= 0 {
			return fmt.Sprintf("other process: other processes use %v of the device; %s.", f.others(), f.shortage(short))
		}
		return fmt.Sprintf("other process: %v of the device are in use outside of this allocator, by other processes or by other libraries of this one; %s.", f.Outside, f.shortage(short))
	case verdict.TrulyFull:
		return f.full(short)
	}
	switch {
	case f.onHost:
		return "not the GPU: the memory of the machine ran out."
	case short > 0:
		return fmt.Sprintf("unknown: %s, and the message does not say who holds the rest.", f.shortage(short))
	case f.Requested >= 0:
		return "unknown: the message has the size of the request, but not who holds the memory."
	}
	return "unknown: the message has neither the size of the request nor who holds the memory."
}

// shortage says by how much the free memory is too little.
func (f *Failure) shortage(short alloc.Bytes) string {
	if f.values().Nearly() {
		return fmt.Sprintf("the driver refused %v although %v are free, because it needs a part of them itself", f.Requested, f.Free)
	}
	return fmt.Sprintf("the request exceeds the free memory by %v", short)
}

// unused says what is not allocated.
func (f *Failure) unused() string {
	if f.Free == 0 {
		return fmt.Sprintf("%v are reserved but unallocated", f.Inactive)
	}
	return fmt.Sprintf("%v are reserved but unallocated and %v are free", f.Inactive, f.Free)
}

// butOthers says that others hold more than the program, if they do.
func (f *Failure) butOthers() string {
	if n := f.others(); n > f.Reserved && f.Reserved >= 0 {
		return fmt.Sprintf(" But others hold %v of the device.", n)
	}
	return ""
}

// full says who has the memory of a full device.
func (f *Failure) full(short alloc.Bytes) string {
	lacks := short - max(0, f.Inactive)
	says := "truly full: " + f.shortage(short)
	if f.Inactive > 0 && !f.values().Nearly() {
		says += fmt.Sprintf(", and by %v even if all that is reserved were free", lacks)
	}
	switch {
	case f.Allocated >= 0 && f.Capacity > 0:
		says += fmt.Sprintf("; the program's own buffers hold %v of %v", f.Allocated, f.Capacity)
	case f.Allocated >= 0:
		says += fmt.Sprintf("; the program's own buffers hold %v", f.Allocated)
	}
	if f.Beside > contextBytes {
		says += fmt.Sprintf(", and %v are this process's outside of the allocator", f.Beside)
	}
	return says + "."
}

func (f *Failure) help(do, why string, args ...any) {
	f.Helps = append(f.Helps, Help{do, fmt.Sprintf(why, args...)})
}

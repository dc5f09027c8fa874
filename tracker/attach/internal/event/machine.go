package event

// Machine is a Source that can watch every process of the machine.
type Machine interface {
	Source
	// WatchAll begins to report on every process, and returns the time from which on no call of a
	// probed library is missed. Each process is Joined at its first call. A program that a process
	// executes is a process of its own: Execed ends the one before.
	WatchAll() (since uint64, err error)
	// ReadMappings calls mapped, in one goroutine, for the files of code that any process maps, soon
	// after it does, until the source is detached. It calls missed after some were not reported.
	ReadMappings(mapped func(Mapping), missed func()) error
	// LostBy returns the number of dropped events of a process, and the time of the first.
	LostBy(pid int) (count, since uint64)
}

// Mapping is that a process maps the code of a file.
type Mapping struct {
	PID  int
	Path string // as the process sees it
	Time uint64 // by the clock of the events
}

// Package rmm reads the logs of RMM, RAPIDS' memory manager, as histories: each allocation and free
// with its thread and stream, and the allocations that failed.
//
//	mr = rmm.mr.LoggingResourceAdaptor(upstream, "rmm.csv")    # Python
//	rmm::mr::logging_resource_adaptor log_mr{upstream, "rmm.csv"};    // C++
//
// # Formats
//
// Two are read. Lines may stand among others, as in the output of Spark's executors with
// spark.rapids.memory.gpu.debug, and the header may be missing.
//
// Since 0.15 (2020) rmm/mr/logging_resource_adaptor.hpp writes
//
//	Thread,Time,Action,Pointer,Size,Stream
//	12101,10:11:02.100001,allocate,0x7f3c20000000,1048576,0x0
//
// with the actions allocate and free, and since 22.04 "allocate failure". The time is local and has
// no date; seconds since 1970 are read too. A time of day stands on January 1, 1970, in UTC, and goes
// on over midnight. The log has no call stacks: the thread stands for the line of code.
//
// Up to 0.14, rmm.csv_log() writes
//
//	Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,Location
//	Alloc,0,0x7fae06600000,0,80,0,0,1,1.10549,1.1074,0.00191666,driver.py:683
//
// with several devices, and the line of code of each call. Its times are seconds since the log began.
//
// # What is counted
//
// Sizes are those asked of the logged resource. What that resource itself holds from the driver, such
// as a pool, is not in the log, so the memory that is reserved is taken as that which is live. A failure
// is the dump's error if no allocation succeeded after it: programs that spill go on.
package rmm

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/eventlog"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// ErrNoEvent is the error of a text without an event of RMM.
var ErrNoEvent = errors.New("it has no line of a log of RMM")

// Read reads a log, packed by gzip or not. It returns the dump of the device with the most memory, with
// the dumps of the other devices as its Others, and the usage of all. The memory that it takes grows with
// the file, up to 1 GiB. The error is ErrNoEvent, or says that the file is torn or too large.
func Read(r io.Reader) (*snapshot.Dump, *export.Usage, error) {
	in, err := bounded.NewReader(r, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("read log of RMM: %w", err)
	}
	l := &log{use: in.Use, devices: make(map[int]*eventlog.Builder), stacks: new(tables.StackTable), ids: make(map[mem.Frame]tables.StackID)}
	lines := bufio.NewReaderSize(in, maxLine)
	for err == nil {
		var line []byte
		line, err = lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			err = skipLine(lines) // no line of a log is so long
		case err == nil || errors.Is(err, io.EOF):
			if err := l.line(strings.TrimSpace(string(line)), err == nil); err != nil {
				return nil, nil, fmt.Errorf("read log of RMM: %w", err)
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("read log of RMM: %w", bounded.Torn(err))
	}
	return l.result()
}

// maxLine bounds a line.
const maxLine = 1 << 16

func skipLine(lines *bufio.Reader) error {
	for {
		if _, err := lines.ReadSlice('\n'); !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// log is a log that is being read.
type log struct {
	use     func(bytes int64) error
	devices map[int]*eventlog.Builder
	stacks  *tables.StackTable
	ids     map[mem.Frame]tables.StackID

	begun  bool
	start  time.Time
	before time.Duration // the time of day of the line before
	day    time.Duration // midnights so far
}

// The fields of the two formats.
const (
	fieldsNow = 6
	fieldsOld = 12
)

// line takes a line. What is not an event is passed over, and so is a last line that may lack its end.
func (l *log) line(text string, complete bool) error {
	fields := strings.Split(text, ",")
	switch {
	case len(fields) == fieldsNow && complete:
		return l.now(fields)
	case len(fields) >= fieldsOld && (fields[0] == "Alloc" || fields[0] == "Free" || fields[0] == "Realloc"):
		return l.old(fields)
	case len(fields) == fieldsNow && strings.HasPrefix(fields[5], "0x"):
		return l.now(fields)
	}
	return nil
}

// maxSize is more than any device has, and so little that all sizes of a log can be added up.
const maxSize = 1 << 42

// now takes a line of the format since 0.15.
func (l *log) now(fields []string) error {
	action := fields[2]
	if action != "allocate" && action != "free" && action != "deallocate" && action != "allocate failure" {
		return nil
	}
	at, start, ok := l.timeOf(fields[1])
	size, err := strconv.ParseInt(fields[4], 10, 64)
	if !ok || err != nil || size < 0 || size > maxSize {
		return nil //nolint:nilerr // it is a line of another program
	}
	e := eventlog.Event{Size: alloc.Bytes(size), Stream: alloc.Stream(address(fields[5]))}
	if e.Ptr = alloc.Ptr(address(fields[3])); e.Ptr == 0 && (action != "allocate failure" || size == 0) {
		return nil // RMM gives a null pointer for 0 bytes
	}
	if e.Stack, err = l.stack(mem.Frame{Function: "thread " + fields[0]}); err != nil {
		return err
	}
	b := l.device(0, start)
	e.Since = at
	switch action {
	case "allocate":
		return b.Alloc(e)
	case "allocate failure":
		return b.Fail(e)
	}
	return b.Free(e)
}

// timeOf returns the time of an event since the start, and the start.
func (l *log) timeOf(text string) (since time.Duration, start time.Time, ok bool) {
	at, err := time.Parse("15:04:05", text)
	if err != nil {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || seconds < 1e9 || seconds > 1e10 {
			return 0, time.Time{}, false
		}
		at = time.Unix(0, int64(seconds*1e9)).UTC()
	} else {
		day := time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute + time.Duration(at.Second())*time.Second + time.Duration(at.Nanosecond())
		if l.begun && day < l.before-12*time.Hour {
			l.day += 24 * time.Hour
		}
		l.before = day
		at = time.Unix(0, 0).UTC().Add(l.day + day)
	}
	if !l.begun {
		l.begun, l.start = true, at
	}
	return at.Sub(l.start), l.start, true
}

// old takes a line of the format up to 0.14. Its location may have commas.
func (l *log) old(fields []string) error {
	device, err1 := strconv.Atoi(fields[1])
	size, err2 := strconv.ParseInt(fields[4], 10, 64)
	seconds, err3 := strconv.ParseFloat(fields[8], 64)
	const century = 100 * 365 * 24 * 3600
	if err1 != nil || err2 != nil || err3 != nil || device < 0 || device >= maxDevices || size < 0 || size > maxSize || !(seconds >= 0 && seconds < century) {
		return nil //nolint:nilerr // it is a line of another program
	}
	e := eventlog.Event{
		Since: time.Duration(seconds * 1e9), Ptr: alloc.Ptr(address(fields[2])), Size: alloc.Bytes(size), Stream: alloc.Stream(address(fields[3])),
	}
	if e.Ptr == 0 {
		return nil
	}
	var err error
	if e.Stack, err = l.stack(location(strings.Join(fields[11:], ","))); err != nil {
		return err
	}
	b := l.device(device, time.Unix(0, 0).UTC())
	if fields[0] == "Free" {
		return b.Free(e)
	}
	return b.Alloc(e)
}

// maxDevices bounds the devices of a log.
const maxDevices = 256

// location reads a file and a line: "driver.py:683".
func location(text string) mem.Frame {
	i := strings.LastIndexByte(text, ':')
	line, err := strconv.Atoi(text[i+1:])
	if i < 0 || err != nil || line < 0 {
		return mem.Frame{File: bounded.Name(text)}
	}
	return mem.Frame{File: bounded.Name(text[:i]), Line: line}
}

// address reads a number with or without 0x, which is hexadecimal with it; 0 if it is none.
func address(text string) uint64 {
	if hex, ok := strings.CutPrefix(text, "0x"); ok {
		n, _ := strconv.ParseUint(hex, 16, 63)
		return n
	}
	n, _ := strconv.ParseUint(text, 10, 63)
	return n
}

// stackBytes is what a call stack of one frame takes.
const stackBytes = 256

func (l *log) stack(f mem.Frame) (tables.StackID, error) {
	if f == (mem.Frame{}) {
		return 0, nil
	}
	id, ok := l.ids[f]
	if ok {
		return id, nil
	}
	f.Function, f.File = strings.Clone(bounded.Name(f.Function)), strings.Clone(f.File)
	id = l.stacks.Add(mem.Stack{f}, f)
	l.ids[f] = id
	return id, l.use(stackBytes + int64(len(f.Function)+len(f.File)))
}

func (l *log) device(ordinal int, start time.Time) *eventlog.Builder {
	b := l.devices[ordinal]
	if b == nil {
		b = eventlog.New(eventlog.Config{Device: "RMM", Ordinal: ordinal, Start: start, Stacks: l.stacks, Memory: alloc.UnknownMemory, Use: l.use})
		l.devices[ordinal] = b
	}
	return b
}

func (l *log) result() (*snapshot.Dump, *export.Usage, error) {
	var dumps []*snapshot.Dump
	for ordinal, b := range l.devices {
		if b.Len() == 0 {
			continue
		}
		d, err := b.Dump()
		if err != nil {
			return nil, nil, fmt.Errorf("read log of RMM: device %d: %w", ordinal, err)
		}
		d.Snapshot.Settings = map[string]string{walk.AllocatorSetting: walk.RMMAllocator}
		dumps = append(dumps, d)
	}
	if len(dumps) == 0 {
		return nil, nil, ErrNoEvent
	}
	slices.SortFunc(dumps, func(x, y *snapshot.Dump) int {
		return cmp.Or(cmp.Compare(y.Snapshot.Peak.Bytes, x.Snapshot.Peak.Bytes), cmp.Compare(x.Snapshot.Ordinal, y.Snapshot.Ordinal))
	})
	most := dumps[0]
	most.Others = dumps[1:]
	return most, export.FromDump(most), nil
}

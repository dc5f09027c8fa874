package top

import (
	"context"
	"fmt"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// topSample is what top shows: the latest answers of the driver and of the live pages.
type topSample struct {
	Time    time.Time
	Source  string
	Silent  time.Duration // since when the driver has not answered
	Waiting bool          // the driver has not answered yet
	Devices []topDevice
	Pages   []topPage
}

type topDevice struct {
	nvml.Reading
	deviceHistory
	Processes    []topProcess
	ProcessesErr error
}

type topProcess struct {
	PID     int
	Device  string      // its label
	Memory  alloc.Bytes // negative if the driver does not say
	Total   float64     // of the device's memory
	SM      float64     // percent of the device's multiprocessors in the last second; negative if unknown
	Command string
	processFacts
}

// deviceHistory holds how full and how busy a device was at the last samples, as fractions; NaN means
// unknown.
type deviceHistory struct{ memory, busy []float64 }

// topWatch keeps the latest sample. The driver and each page have a goroutine of their own, so that
// none waits for another.
type topWatch struct {
	src      nvml.Source
	devices  []nvml.Device
	urls     []string
	attach   func(pid int) (watched, error)
	panicked chan string   // the value of a panic and its stack
	news     chan struct{} // something has answered

	// Only the goroutine that asks the driver uses these.
	processes *processTable
	history   map[string]*deviceHistory // by UUID
	sampled   bool

	attaching sync.WaitGroup

	mu     sync.Mutex
	asked  time.Time // when the driver was asked and has not answered since; zero if it has
	listed []topDevice
	pages  []topPage

	attached *attachment // nil if there is none
}

func newTopWatch(src nvml.Source, devices []nvml.Device, urls []string) *topWatch {
	w := &topWatch{
		src: src, devices: devices, urls: urls, attach: attachTo, panicked: make(chan string), news: make(chan struct{}, 1),
		processes: newProcessTable(), history: make(map[string]*deviceHistory), pages: make([]topPage, len(urls)),
	}
	for i, url := range urls {
		w.pages[i].URL = url
	}
	return w
}

// run asks again and again until ctx is done.
func (w *topWatch) run(ctx context.Context, interval time.Duration) {
	go w.repeat(ctx, interval, w.askDriver)
	for i := range w.urls {
		go w.repeat(ctx, interval, func() { w.askPage(ctx, i) })
	}
}

// sample asks the driver and each page once, and waits a few seconds at most.
func (w *topWatch) sample(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(w.askDriver)
	for i := range w.urls {
		all.Go(func() { w.askPage(ctx, i) })
	}
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// repeat calls ask again and again. Between two calls it waits for the interval, or for nine times as long as
// ask took, so that a page with many buffers costs its program a tenth of a processor at most. A panic is
// passed to the loop that owns the screen, which can restore it.
func (w *topWatch) repeat(ctx context.Context, interval time.Duration, ask func()) {
	defer func() {
		if p := recover(); p != nil {
			w.panicked <- fmt.Sprintf("%v\n%s", p, debug.Stack())
		}
	}()
	const longest = 10 * time.Second
	for {
		begin := time.Now()
		ask()
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(interval, min(9*time.Since(begin), longest))):
		}
	}
}

func (w *topWatch) askDriver() {
	w.mu.Lock()
	w.asked = time.Now()
	w.mu.Unlock()
	listed := make([]topDevice, len(w.devices))
	var pids []int
	for i, reading := range nvml.ReadAll(w.src, w.devices) {
		listed[i].Reading, listed[i].deviceHistory = reading, w.remember(reading)
		total, _ := reading.Value(nvml.MemoryTotal)
		processes, err := w.src.Processes(reading.Device)
		listed[i].ProcessesErr = err
		busy, err := nvml.UtilizationOf(w.src, reading.Device)
		for _, pid := range slices.Sorted(maps.Keys(processes)) {
			pids = append(pids, pid)
			listed[i].Processes = append(listed[i].Processes, topProcess{
				PID: pid, Device: reading.Label(), Memory: processes[pid], Total: total, SM: smOf(busy, err, pid), Command: commandOf(pid), processFacts: unknownProcess,
			})
		}
	}
	facts := w.factsOf(pids)
	for _, d := range listed {
		for i := range d.Processes {
			d.Processes[i].processFacts = facts[d.Processes[i].PID]
		}
	}
	w.mu.Lock()
	w.asked, w.listed = time.Time{}, listed
	w.mu.Unlock()
	w.notify()
}

// smOf returns a process's use of a device. If the driver names some processes, those that it does
// not name did nothing; if it names none, nothing is known.
func smOf(busy map[int]float64, err error, pid int) float64 {
	if err != nil || len(busy) == 0 {
		return -1
	}
	return busy[pid]
}

// factsOf returns facts about processes. The first time it samples twice, since the use of processors
// is measured between two samples.
func (w *topWatch) factsOf(pids []int) map[int]processFacts {
	facts := w.processes.sample(pids)
	if !w.sampled && len(pids) > 0 {
		const between = 200 * time.Millisecond
		time.Sleep(between)
		facts = w.processes.sample(pids)
	}
	w.sampled = true
	return facts
}

// remember adds a reading to the history of its device, and returns the history.
func (w *topWatch) remember(r nvml.Reading) deviceHistory {
	h := w.history[r.UUID]
	if h == nil {
		h = new(deviceHistory)
		w.history[r.UUID] = h
	}
	h.add(r)
	return *h
}

func (w *topWatch) askPage(ctx context.Context, i int) {
	page := readPage(ctx, w.urls[i])
	w.mu.Lock()
	w.pages[i] = page
	w.mu.Unlock()
	w.notify()
}

func (w *topWatch) notify() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

func (w *topWatch) latest() topSample {
	w.mu.Lock()
	defer w.mu.Unlock()
	sample := topSample{Time: time.Now(), Source: w.src.Name(), Devices: w.listed, Pages: slices.Clone(w.pages)}
	if w.attached != nil {
		sample.Pages = append(sample.Pages, w.attached.page)
	}
	if !w.asked.IsZero() {
		sample.Silent = time.Since(w.asked)
	}
	if sample.Waiting = sample.Devices == nil; sample.Waiting {
		for _, d := range w.devices {
			sample.Devices = append(sample.Devices, topDevice{Reading: nvml.Reading{Device: d}})
		}
	}
	return sample
}

// historyLength is how many samples are kept.
const historyLength = 60

func (h *deviceHistory) add(r nvml.Reading) {
	h.memory = addShare(h.memory, shareOf(r))
	busy, ok := r.Value(nvml.Utilization)
	if !ok {
		busy = math.NaN()
	}
	h.busy = addShare(h.busy, busy/100)
}

// addShare returns a new list: an earlier one may be on the screen.
func addShare(list []float64, share float64) []float64 {
	list = append(slices.Clip(list), share)
	return list[max(0, len(list)-historyLength):]
}

// shareOf returns the fraction of a device's memory that is in use.
func shareOf(r nvml.Reading) float64 {
	used, ok := r.Value(nvml.MemoryUsed)
	total, known := r.Value(nvml.MemoryTotal)
	if !ok || !known || total <= 0 {
		return math.NaN()
	}
	return used / total
}

package nvml

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// Config says what a Recorder records. The zero Config records the memory used
// on every visible device five times a second, and writes no file.
type Config struct {
	// Source answers; nil means Open. A Source given here is not closed.
	Source Source
	// Interval is the time between samples. 0 means 200 ms; the least is 10 ms. It becomes longer
	// if the source needs more than half of it to answer.
	Interval time.Duration
	// Devices are numbers as nvidia-smi prints them, or UUIDs. Empty means all
	// that CUDA_VISIBLE_DEVICES leaves: see VisibleDevices.
	Devices []string
	// Target is a process whose memory is recorded too; with PID 0 there is none. The driver is
	// asked at most once a second, however short the interval, because the call is costly and
	// delays the watched program.
	Target Target
	// Fresh says that Target was started a moment ago and has no memory yet. The driver is then
	// first asked for it when the device's memory changes, or after a second, so that a program
	// that runs for less than a second is seen too.
	Fresh bool
	// Quantities are recorded in addition to MemoryUsed, which is always recorded.
	Quantities []Quantity
	// Files are written to as samples come, one line each, so that a recorder
	// that is killed loses one interval at most: JSON lines, or CSV if the name
	// ends so. A name that ends in a separator, such as "./", is a folder: a file is made there, named
	// after the date, the process and the GPUs. A file that exists is an error without Overwrite.
	Files     []string
	Overwrite bool
	// maxPoints bounds the memory of a series: 4096 points of 56 bytes if zero.
	// A longer recording is thinned out, keeping each interval's minimum and
	// maximum; files get every sample.
	maxPoints int

	found []Device // by Validate; nil before
}

const (
	minInterval     = 10 * time.Millisecond
	defaultInterval = 200 * time.Millisecond
	processInterval = time.Second
)

func (c *Config) complete() error {
	switch {
	case c.Interval == 0:
		c.Interval = defaultInterval
	case c.Interval < minInterval:
		return fmt.Errorf("nvml: an interval of %v: the shortest is %v, since each query holds up the driver", c.Interval, minInterval)
	}
	if c.Target.PID < 0 {
		return fmt.Errorf("nvml: pid %d: a process number is positive", c.Target.PID)
	}
	if c.Target.PID > 0 && !(systemProcesses{}).exists(c.Target.PID) {
		return fmt.Errorf("nvml: there is no process %d", c.Target.PID)
	}
	if c.maxPoints <= 0 {
		c.maxPoints = defaultPoints
	}
	return nil
}

// Validate returns the error that NewRecorder would, but for files, which it does not touch: it checks the
// interval, the Target and, if there is a Source, the Devices. It sets what is zero to its default,
// and keeps the devices that Source listed: NewRecorder(*c) does not ask for them again, so Source and
// Devices must stay as they are.
func (c *Config) Validate() error {
	if err := c.complete(); err != nil || c.Source == nil {
		return err
	}
	found, err := selectDevices(c.Source, c.Devices)
	c.found = found
	return err
}

// Recorder samples devices in a goroutine. Its methods may be called from any goroutine.
type Recorder struct {
	cfg     Config
	src     Source
	ownsSrc bool
	sampler *sampler
	files   []*file
	pace    pace   // used only by the goroutine that samples
	asker   *asker // the one that waits for the driver

	mu      sync.Mutex
	store   *store
	started bool
	stop    context.CancelFunc
	done    chan struct{}
	err     error // first failed write, and what Stop returns
}

// NewRecorder finds the devices and creates the files. It takes no sample yet. The error says
// what is wrong with the Config, that no source answers (ErrNotAvailable), or that a file
// cannot be created.
func NewRecorder(cfg Config) (*Recorder, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	r := &Recorder{cfg: cfg, src: cfg.Source, done: make(chan struct{}), asker: newAsker()}
	if r.src == nil {
		src, err := Open()
		if err != nil {
			return nil, err
		}
		r.src, r.ownsSrc = src, true
	}
	if err := r.prepare(); err != nil {
		return nil, errors.Join(err, r.closeSource())
	}
	return r, nil
}

func (r *Recorder) prepare() error {
	devices := r.cfg.found
	if devices == nil {
		var err error
		if devices, err = selectDevices(r.src, r.cfg.Devices); err != nil {
			return err
		}
	}
	r.sampler = newSampler(r.src, devices, r.cfg)
	h := header{
		Schema: schema, Source: r.src.Name(), Interval: r.cfg.Interval.Seconds(),
		PID: r.cfg.Target.PID, Children: r.cfg.Target.Children,
		Quantities: r.sampler.quantities().list(), Devices: devices,
	}
	r.store = newStore(h, r.cfg.maxPoints)
	r.store.prepare(r.sampler.quantities())
	for _, name := range r.cfg.Files {
		if dir, base := filepath.Split(name); base == "" && dir != "" {
			name = autoName(dir, time.Now(), r.cfg.Target.PID, devices)
		}
		f, err := createFile(name, r.cfg.Overwrite)
		if err != nil {
			return errors.Join(err, r.closeFiles())
		}
		r.files = append(r.files, f)
	}
	return nil
}

// String says how many devices are recorded, and whether it has begun.
func (r *Recorder) String() string {
	if r.store == nil {
		return "no recorder: NewRecorder makes one"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	state := "not started"
	if r.started {
		state = "started"
	}
	return fmt.Sprintf("recorder, devices: %d, %s", len(r.store.tracks), state)
}

// Files returns the names of the files that the samples go to.
func (r *Recorder) Files() []string {
	names := make([]string, len(r.files))
	for i, f := range r.files {
		names[i] = f.name
	}
	return names
}

// Start takes the first sample, and begins to record. It waits half a second at most for a
// driver that is slow to answer. A Recorder records once. The error says that it recorded
// before.
func (r *Recorder) Start() error {
	ctx, err := r.begin()
	if err != nil {
		return err
	}
	go r.asker.run(r.sampler)
	r.ask() // the state that the recording begins with
	r.await(answerLimit)
	go r.run(ctx)
	return nil
}

func (r *Recorder) begin() (context.Context, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return nil, errors.New("nvml: this recorder was started before: make a new one")
	}
	r.started = true
	r.sampler.start = time.Now()
	r.store.header.Start = r.sampler.start.UTC()
	for _, f := range r.files {
		r.keep(f.begin(r.store.header))
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	return ctx, nil
}

// keep remembers the first failure to write. Recording goes on.
func (r *Recorder) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Stop takes a last sample, closes the files and returns what went wrong with them. A query that
// failed is not an error: see Recording.Failures. It waits half a second at most for the driver;
// where no answer comes in that time, the recording ends with a gap, and the series' notes say so.
// A second Stop returns the same error. Stop of a recorder that was never started closes its files.
func (r *Recorder) Stop() error {
	r.mu.Lock()
	stop := r.stop
	first := !r.started
	r.started = true
	r.mu.Unlock()
	if stop != nil {
		stop()
		<-r.done
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil || first {
		r.stop = nil
		r.keep(r.closeFiles())
		r.keep(r.closeSource())
	}
	return r.err
}

// Record records while fn runs, and returns fn's error and Stop's.
func (r *Recorder) Record(ctx context.Context, fn func(context.Context) error) (err error) {
	if err := r.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Stop()) }()
	return fn(ctx)
}

// Recording returns a copy of what was recorded so far.
func (r *Recorder) Recording() Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.store.recording()
}

func (r *Recorder) closeFiles() error {
	var errs []error
	for _, f := range r.files {
		errs = append(errs, f.close())
	}
	return errors.Join(errs...)
}

func (r *Recorder) closeSource() error {
	if !r.ownsSrc {
		return nil
	}
	if r.asker.pending() { // a library is closed when the call under way returns
		go r.src.Close()
		return nil
	}
	return r.src.Close()
}

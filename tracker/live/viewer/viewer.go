// Package viewer serves the memory of recorded files as a timeline of single allocations, of any size:
//
//	v := viewer.New(viewer.Config{})
//	v.Add(viewer.Source{Name: "rank0.pickle", Read: readRank0})
//	go v.Run(ctx)
//	err := http.Serve(listener, v) // the page is at http://ADDRESS/?token=TOKEN
//
// Each allocation is an area over time and height. The page asks for tiles: what a view shows, with the allocations that are
// lower than a pixel merged, so that an answer is as large as the view and not as the file. Each column of a tile adds up to
// the bytes that were live at its moment.
//
// # Who is answered
//
// Only who has the token: in the address, in the cookie that the page sets, or in a header "Authorization: Bearer". A Host
// header that is a name other than localhost is refused, so that web pages cannot read the answers by DNS rebinding. No answer
// allows another origin to read it. A wrong or unknown parameter is answered with 400.
//
// # Files
//
// Run reads the sources. The page shows each as soon as it is read, and before that how far it is. A file that cannot be read
// does not keep the others from being shown.
//
// # Cost
//
// A file takes what its dump takes, and its index: some 46 bytes for each allocation that was freed. An answer is at most some
// megabytes, and takes memory only while it is made. As many are made at a time as there are processors.
package viewer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Config configures a Viewer. The zero Config is ready to use.
type Config struct {
	// Hosts are the names that requests may be addressed to, as those of live.Handler, besides localhost and numeric
	// addresses.
	Hosts []string
	// Version is what the page says of the program.
	Version string
}

// Viewer is the handler of the page and of what it asks for. Its methods may be called from any goroutine.
type Viewer struct {
	version string
	token   string
	hosts   map[string]bool
	names   *bands.Names
	routes  map[string]route
	making  chan struct{} // holds one for each answer that is being made

	mu      sync.Mutex
	files   []*file
	seq     int
	changed chan struct{} // closed at the next change
}

// Source is a file to show.
type Source struct {
	Name string // on the page
	Path string // where it is; Name if it is empty
	Size int64  // in bytes; 0 if it is not known
	// Read reads the file. It may be called in its own goroutine, and should end when the context does.
	Read func(context.Context, *Progress) (*files.File, error)
}

// Progress is how a source says how far it is. A nil Progress tells nobody.
type Progress struct{ of *file }

// New returns a viewer without files, with a token that nobody can guess.
func New(cfg Config) *Viewer {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // never fails
	v := &Viewer{
		version: cfg.Version, token: hex.EncodeToString(secret), hosts: make(map[string]bool), names: bands.NewNames(),
		making: make(chan struct{}, runtime.GOMAXPROCS(0)), changed: make(chan struct{}),
	}
	for _, name := range cfg.Hosts {
		v.hosts[request.CanonicalHost(name)] = true
	}
	v.setRoutes()
	return v
}

// Token returns the secret that a request needs.
func (v *Viewer) Token() string { return v.token }

// String says how many files there are, and in which states.
func (v *Viewer) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	counts := make(map[string]int)
	for _, f := range v.files {
		counts[f.state]++
	}
	return fmt.Sprintf("viewer of %d files, %d ready, %d failed", len(v.files), counts[stateReady], counts[stateFailed])
}

// The states of a file.
const (
	stateWaiting  = "waiting"
	stateReading  = "reading"
	stateIndexing = "indexing"
	stateReady    = "ready"
	stateFailed   = "failed"
)

// file is a source and what was read of it. Its viewer's lock guards what follows the source; a track does not change.
type file struct {
	Source
	viewer *Viewer
	number int

	state   string
	begun   time.Time
	spent   time.Duration
	done    int64
	noted   time.Time // when done was last announced
	err     error
	format  string
	origin  snapshot.Origin
	hasRead bool
	early   *earlyJSON
	tracks  []*track
}

// Add adds a file, which Run reads.
func (v *Viewer) Add(s Source) {
	if s.Path == "" {
		s.Path = s.Name
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.files = append(v.files, &file{Source: s, viewer: v, number: len(v.files), state: stateWaiting})
	v.change()
}

// change announces a change. Its caller holds the lock.
func (v *Viewer) change() {
	v.seq++
	close(v.changed)
	v.changed = make(chan struct{})
}

// errNoFile is the error of showing nothing.
var errNoFile = errors.New("there is no file to show")

// Run reads the files that were added, as many at a time as there are processors, and returns when all are read. The error is
// the context's, or says that no file could be read and why; of several, those of the first few.
func (v *Viewer) Run(ctx context.Context) error {
	v.mu.Lock()
	waiting := make(chan *file, len(v.files))
	for _, f := range v.files {
		if f.state == stateWaiting {
			waiting <- f
		}
	}
	v.mu.Unlock()
	close(waiting)
	var workers sync.WaitGroup
	for range min(len(waiting), runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for f := range waiting {
				f.read(ctx)
			}
		})
	}
	workers.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return v.failure()
}

// failure returns why no file could be read; nil if one could.
func (v *Viewer) failure() error {
	const most = 5
	v.mu.Lock()
	defer v.mu.Unlock()
	var errs []error
	for _, f := range v.files {
		if f.state == stateReady {
			return nil
		}
		if f.err != nil && len(errs) < most {
			errs = append(errs, f.err)
		}
	}
	if len(errs) == 0 {
		return errNoFile
	}
	return errors.Join(errs...)
}

// set changes a file and announces it.
func (f *file) set(change func()) {
	f.viewer.mu.Lock()
	defer f.viewer.mu.Unlock()
	change()
	f.viewer.change()
}

// read reads and indexes the file.
func (f *file) read(ctx context.Context) {
	f.set(func() { f.state, f.begun = stateReading, time.Now() })
	tracks, err := f.index(ctx)
	f.set(func() {
		f.spent = time.Since(f.begun)
		if f.err = err; err != nil {
			f.state = stateFailed
			return
		}
		f.state, f.tracks, f.early, f.done = stateReady, tracks, nil, max(f.done, f.Size)
	})
}

func (f *file) index(ctx context.Context) ([]*track, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	read, err := f.Read(ctx, &Progress{f})
	if err != nil {
		return nil, err
	}
	if read.Dump == nil {
		return nil, fmt.Errorf("%s is a %s: it has no single allocations: want a dump, or a memory snapshot of PyTorch", f.Name, read.Format)
	}
	f.set(func() {
		f.state, f.format, f.hasRead = stateIndexing, read.Format, true
		f.origin = read.Dump.Snapshot.Origin
	})
	var tracks []*track
	for _, d := range append([]*snapshot.Dump{read.Dump}, read.Dump.Others...) {
		hosts := []bool{false}
		if bands.HasHost(d) {
			hosts = append(hosts, true)
		}
		for _, host := range hosts {
			x, err := bands.New(ctx, d, f.viewer.names, host)
			if err != nil {
				return nil, err
			}
			if host && x.Len() == 0 {
				continue
			}
			tracks = append(tracks, newTrack(f, len(tracks), x, host))
		}
	}
	return tracks, nil
}

// announceEvery bounds how often progress is announced.
const announceEvery = 200 * time.Millisecond

// Bytes says how many bytes of the file were read.
func (p *Progress) Bytes(n int64) {
	if p == nil {
		return
	}
	v := p.of.viewer
	v.mu.Lock()
	defer v.mu.Unlock()
	p.of.done = n
	if now := time.Now(); now.Sub(p.of.noted) >= announceEvery {
		p.of.noted = now
		v.change()
	}
}

// Early gives the state at the end of the recording while its events are still read. The page shows it as a table.
func (p *Progress) Early(s *snapshot.Snapshot) {
	if p == nil || s == nil {
		return
	}
	early := newEarly(s)
	p.of.set(func() { p.of.early = early })
}

// ServeHTTP answers the page and what it asks for.
func (v *Viewer) ServeHTTP(w http.ResponseWriter, r *http.Request) { v.serve(w, r) }

package viewer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

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

// session is the files that a viewer shows.
type session struct {
	version string
	names   *bands.Names
	making  chan struct{} // holds one for each answer that is being made
	unsent  atomic.Int64  // bytes of the answers that are made and not yet sent

	mu      sync.Mutex
	files   []*file
	seq     int
	changed chan struct{} // closed at the next change
}

func newSession(version string) *session {
	return &session{version: version, names: bands.NewNames(), making: make(chan struct{}, runtime.GOMAXPROCS(0)), changed: make(chan struct{})}
}

// add adds a file, which run reads.
func (s *session) add(source Source) {
	if source.Path == "" {
		source.Path = source.Name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = append(s.files, &file{Source: source, session: s, number: len(s.files), state: stateWaiting})
	s.change()
}

// The states of a file.
const (
	stateWaiting  = "waiting"
	stateReading  = "reading"
	stateIndexing = "indexing"
	stateReady    = "ready"
	stateFailed   = "failed"
)

// file is a source and what was read of it. Its session's lock guards what follows the source; a track does not change.
type file struct {
	Source
	session *session
	number  int

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

// change announces a change. Its caller holds the lock.
func (s *session) change() {
	s.seq++
	close(s.changed)
	s.changed = make(chan struct{})
}

// errNoFile is the error of showing nothing.
var errNoFile = errors.New("there is no file to show")

// run is Viewer.Run.
func (s *session) run(ctx context.Context) error {
	s.mu.Lock()
	waiting := make(chan *file, len(s.files))
	for _, f := range s.files {
		if f.state == stateWaiting {
			waiting <- f
		}
	}
	s.mu.Unlock()
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
	return s.failure()
}

// failure returns why no file could be read; nil if one could.
func (s *session) failure() error {
	const most = 5
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, f := range s.files {
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
	f.session.mu.Lock()
	defer f.session.mu.Unlock()
	change()
	f.session.change()
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
			x, err := bands.New(ctx, d, f.session.names, host)
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
	if p == nil || p.of == nil {
		return
	}
	s := p.of.session
	s.mu.Lock()
	defer s.mu.Unlock()
	p.of.done = n
	if now := time.Now(); now.Sub(p.of.noted) >= announceEvery {
		p.of.noted = now
		s.change()
	}
}

// Early gives the state at the end of the recording while its events are still read. The page shows it as a table, until the
// file is read.
func (p *Progress) Early(end *snapshot.Snapshot) {
	if p == nil || p.of == nil || end == nil {
		return
	}
	early := newEarly(end)
	p.of.set(func() {
		if p.of.state == stateReading {
			p.of.early = early
		}
	})
}

// String says how far the source is: "400 of 1000 bytes".
func (p *Progress) String() string {
	if p == nil || p.of == nil {
		return "nothing"
	}
	p.of.session.mu.Lock()
	defer p.of.session.mu.Unlock()
	return fmt.Sprintf("%d of %d bytes", p.of.done, p.of.Size)
}

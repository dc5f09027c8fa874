package otlp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"

	wire "github.com/gpumemtrack/gpumemtrack/internal/otlp"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Source is what is pushed: a *tracker.MemTracker or an *attach.Source. Its method may be called from any goroutine, and
// holds no allocation up. Sources are compared by ==. If it also has a method Ended() time.Time, as an *attach.Source has, its
// metrics are pushed once more after that is not zero.
type Source interface {
	LightSnapshot() *snapshot.Snapshot
}

// Config says where to push, what and how often. Where a field is zero, the environment variables of OpenTelemetry's
// exporters apply: OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL, _HEADERS, _TIMEOUT, _COMPRESSION, _CERTIFICATE,
// _CLIENT_CERTIFICATE and _CLIENT_KEY, each also with METRICS_ or PROFILES_ after OTLP_, OTEL_METRIC_EXPORT_INTERVAL,
// OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME.
type Config struct {
	// Endpoint is a URL: http://host:4318, https://host:4318, grpc://host:4317 or grpcs://host:4317. The paths /v1/metrics and
	// /v1development/profiles are appended for HTTP. An http or https URL means gRPC if OTEL_EXPORTER_OTLP_PROTOCOL says so, or,
	// where that is not set, if the port is 4317.
	Endpoint string
	Headers  map[string]string
	Timeout  time.Duration // of one attempt; default 10 s
	TLS      *tls.Config   // default: the system's roots

	// Interval is the time between two pushes; default 15 s.
	Interval time.Duration

	// Resource are attributes of the resource: strings, bools, integers, floats or slices of strings. What a source's
	// snapshot.Origin has is added: process.pid, host.name, k8s.pod.uid and so on.
	Resource map[string]any

	NoMetrics, NoProfiles bool

	// Warn is called once when pushes begin to fail, with what a user should know; nil if nobody wants to. It is called in any
	// goroutine.
	Warn func(error)

	transport http.RoundTripper
	getenv    func(string) string
	backoff   time.Duration
}

// Pusher pushes until Stop. Its methods may be called from any goroutine.
type Pusher struct {
	cfg      Config
	sources  func() iter.Seq[Source]
	metrics  *wire.Queue  // nil without metrics
	profiles *wire.Client // nil without profiles
	clients  []*wire.Client
	started  time.Time

	cancel  context.CancelFunc
	running sync.WaitGroup
	once    sync.Once
	last    error // of Stop

	turn    chan struct{} // holds a token for the one that pushes profiles, who may use the fields below
	states  map[Source]*delivered
	pending *batch        // was sent, and the server may have taken it
	pause   time.Duration // after the next refusal
	resume  time.Time     // the end of the latest pause

	taken, refused atomic.Int64 // profiles

	mu    sync.Mutex
	ended map[Source]bool // whose metrics were pushed after the end of their process
}

// Stats count what was pushed.
type Stats struct {
	Profiles        int64 `json:"profiles"` // taken by the server
	ProfilesRefused int64 `json:"profiles_refused"`
	Points          int64 `json:"points"` // data points of metrics that were taken
	PointsDropped   int64 `json:"points_dropped"`
	Retries         int64 `json:"retries"` // requests that were sent again
}

// String says it in a line.
func (s Stats) String() string {
	return fmt.Sprintf("%d profiles and %d data points pushed; %d profiles refused, %d data points dropped, %d retries",
		s.Profiles, s.Points, s.ProfilesRefused, s.PointsDropped, s.Retries)
}

// Start pushes the memory of some sources from now on, until Stop. The error says which setting is wrong; that a server does
// not answer is no error.
func Start(cfg Config, sources ...Source) (*Pusher, error) {
	own := slices.Clone(sources)
	return StartAll(cfg, func() iter.Seq[Source] { return slices.Values(own) })
}

// StartAll is Start for sources that come and go: each push calls sources. It is also an error if that is nil.
func StartAll(cfg Config, sources func() iter.Seq[Source]) (*Pusher, error) {
	if sources == nil {
		return nil, errors.New("otlp: no sources")
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pusher{cfg: cfg, sources: sources, states: make(map[Source]*delivered), started: time.Now(), cancel: cancel, turn: make(chan struct{}, 1)}
	if !cfg.NoMetrics {
		client, err := p.client(wire.Metrics)
		if err != nil {
			cancel()
			return nil, err
		}
		p.metrics = wire.NewQueue(client)
	}
	if !cfg.NoProfiles {
		if p.profiles, err = p.client(wire.Profiles); err != nil {
			cancel()
			if p.metrics != nil {
				p.metrics.Close(ctx)
			}
			return nil, err
		}
		p.every(ctx, func() { _ = p.pushProfiles(ctx) }) // what failed is in the next one
	}
	if p.metrics != nil {
		p.every(ctx, p.addMetrics)
	}
	return p, nil
}

// complete sets what is left open.
func (c Config) complete() (Config, error) {
	if c.getenv == nil {
		c.getenv = os.Getenv
	}
	if c.Interval < 0 {
		return c, fmt.Errorf("an interval of %v: want more than 0", c.Interval)
	}
	every, err := wire.Interval(c.getenv)
	if err != nil {
		return c, err
	}
	c.Interval = cmp.Or(c.Interval, every)
	all, err := wire.ResourceAttributes(c.getenv)
	if err != nil {
		return c, err
	}
	maps.Copy(all, c.Resource)
	c.Resource, c.Headers = all, maps.Clone(c.Headers)
	return c, nil
}

func (p *Pusher) client(signal wire.Signal) (*wire.Client, error) {
	c, err := wire.NewClient(wire.Config{
		Endpoint: p.cfg.Endpoint, Headers: p.cfg.Headers, Timeout: p.cfg.Timeout, TLS: p.cfg.TLS, Transport: p.cfg.transport, Getenv: p.cfg.getenv, Backoff: p.cfg.backoff,
		Warn: func(err error) {
			if p.cfg.Warn != nil {
				p.cfg.Warn(fmt.Errorf("push %s: %w", strings.ToLower(signal.Name), err))
			}
		},
	}, signal)
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	p.clients = append(p.clients, c)
	return c, nil
}

// every calls push at each interval until ctx is done, never twice at a time.
func (p *Pusher) every(ctx context.Context, push func()) {
	p.running.Go(func() {
		ticker := time.NewTicker(p.cfg.Interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				push()
			}
		}
	})
}

// addMetrics takes the metrics of all sources, and puts them into the queue. Those of a process that has ended come once more:
// then they are in no sum.
func (p *Pusher) addMetrics() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []wire.Measured
	before := p.ended
	p.ended = make(map[Source]bool)
	for source := range p.sources() {
		if of, ok := source.(interface{ Ended() time.Time }); ok && !of.Ended().IsZero() {
			if p.ended[source] = true; before[source] {
				continue
			}
		}
		all = append(all, measured(p.cfg.Resource, source.LightSnapshot()))
	}
	all = append(all, p.measured())
	wire.EncodeMetrics(all, maxBatchBytes, p.metrics.Add)
}

// measured are the pusher's own metrics.
func (p *Pusher) measured() wire.Measured {
	stats := p.Stats()
	m := wire.Measured{Resource: resourceOf(p.cfg.Resource, snapshot.Origin{}), Start: p.started, Time: time.Now()}
	for _, v := range [...]struct {
		metric          *wire.Metric
		points, profile int64
	}{{exported, stats.Points, stats.Profiles}, {dropped, stats.PointsDropped, stats.ProfilesRefused}} {
		m.Points = append(m.Points, wire.Point{Metric: v.metric, Attributes: []*commonpb.KeyValue{wire.String(signal, "metrics")}, Value: v.points})
		if p.profiles != nil {
			m.Points = append(m.Points, wire.Point{Metric: v.metric, Attributes: []*commonpb.KeyValue{wire.String(signal, "profiles")}, Value: v.profile})
		}
	}
	m.Points = append(m.Points, wire.Point{Metric: again, Value: stats.Retries})
	return m
}

// pushProfiles pushes what changed. If the server may have taken the latest batch, that goes first. The error says why
// changes were not delivered: they are in the next push.
func (p *Pusher) pushProfiles(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if p.pending != nil {
		if err := p.deliver(ctx, p.pending); err != nil {
			return err
		}
	}
	if time.Now().Before(p.resume) {
		return errPaused
	}
	b, seen := newBatch(), make(map[Source]bool)
	for source := range p.sources() {
		of := p.states[source]
		if of == nil {
			of = new(delivered)
			p.states[source] = of
		}
		seen[source] = true
		s := source.LightSnapshot()
		b.begin(of, s)
		for _, c := range of.changes(s) {
			b.add(c, p.cfg.Resource)
			if !b.full() {
				continue
			}
			if err := p.deliver(ctx, b); err != nil {
				return err
			}
			b = newBatch()
			b.begin(of, s)
		}
		b.end()
	}
	maps.DeleteFunc(p.states, func(source Source, _ *delivered) bool { return !seen[source] })
	return p.deliver(ctx, b)
}

var errPaused = errors.New("the server refuses profiles")

// maxPause bounds the time without profiles after the server has refused one.
const maxPause = 15 * time.Minute

// deliver delivers a batch. If the server may have taken it and does not say so, the batch is pending.
func (p *Pusher) deliver(ctx context.Context, b *batch) error {
	if b.samples == 0 {
		b.settle()
		return nil
	}
	if b.payload == nil {
		b.payload = b.encode()
	}
	p.pending = b
	answer, err := p.profiles.Deliver(ctx, b.payload)
	var refused *wire.RefusedError
	if err != nil && !errors.As(err, &refused) {
		return err
	}
	p.pending = nil
	rejected := min(answer.Rejected, int64(b.profiles))
	if err != nil {
		rejected = int64(b.profiles)
	} else if rejected > 0 {
		err = &wire.RefusedError{Why: fmt.Sprintf("%d of %d: %s", rejected, b.profiles, answer.Message)}
	}
	p.refused.Add(rejected)
	p.taken.Add(int64(b.profiles) - rejected)
	if rejected > 0 {
		p.profiles.Warn(err)
	}
	if rejected == int64(b.profiles) { // their changes stay for later
		p.pause = min(max(2*p.pause, p.cfg.Interval), maxPause)
		p.resume = time.Now().Add(p.pause)
		return err
	}
	p.pause = 0
	b.settle() // which of them it has rejected is not known
	return nil
}

// Flush pushes now, and returns when the server has taken everything, or has refused it, or ctx is done. The error says what
// was not taken.
func (p *Pusher) Flush(ctx context.Context) error {
	var errs []error
	if p.metrics != nil {
		before := p.metrics.Stats().Dropped
		p.addMetrics()
		errs = append(errs, p.metrics.Wait(ctx))
		var refused *wire.RefusedError // that others gave way to these is no failure of this push
		if now := p.metrics.Stats(); now.Dropped > before && errors.As(now.LastError, &refused) {
			errs = append(errs, fmt.Errorf("%d data points were %w", now.Dropped-before, refused))
		}
	}
	if p.profiles != nil {
		errs = append(errs, p.pushProfiles(ctx))
	}
	return errors.Join(errs...)
}

// lastPush bounds the time of the push at the end, if the caller does not.
const lastPush = 10 * time.Second

// Stop pushes for the last time, and ends the pusher. If ctx has no deadline, it takes ten seconds at most. The error says
// what did not reach the server, since the start. A second call does nothing, and returns the same.
func (p *Pusher) Stop(ctx context.Context) error {
	p.once.Do(func() {
		if _, bounded := ctx.Deadline(); !bounded {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, lastPush)
			defer cancel()
		}
		p.cancel()
		p.running.Wait()
		var metrics, profiles error
		var both sync.WaitGroup
		if p.metrics != nil {
			p.addMetrics()
			both.Go(func() { metrics = dropError(p.metrics.Close(ctx)) })
		}
		if p.profiles != nil {
			both.Go(func() { profiles = p.lastProfiles(ctx) })
		}
		both.Wait()
		for _, c := range p.clients {
			c.Close()
		}
		p.last = errors.Join(metrics, profiles)
	})
	return p.last
}

func dropError(stats wire.QueueStats) error {
	if stats.Dropped == 0 {
		return nil
	}
	return fmt.Errorf("push metrics: %d of %d data points were dropped: %w", stats.Dropped, stats.Delivered+stats.Dropped, stats.LastError)
}

func (p *Pusher) lastProfiles(ctx context.Context) error {
	err := p.pushProfiles(ctx)
	switch refused := p.refused.Load(); {
	case err != nil && refused > 0:
		return fmt.Errorf("push profiles: the latest changes did not reach the server, %d profiles were refused: %w", refused, err)
	case err != nil:
		return fmt.Errorf("push profiles: the latest changes did not reach the server: %w", err)
	case refused > 0:
		return fmt.Errorf("push profiles: %d of %d profiles were refused", refused, refused+p.taken.Load())
	}
	return nil
}

// Stats returns what was counted so far.
func (p *Pusher) Stats() (s Stats) {
	s.Profiles, s.ProfilesRefused = p.taken.Load(), p.refused.Load()
	if p.metrics != nil {
		queue := p.metrics.Stats()
		s.Points, s.PointsDropped = queue.Delivered, queue.Dropped
	}
	for _, c := range p.clients {
		s.Retries += c.Retries()
	}
	return s
}

// String says where it pushes, and what was counted.
func (p *Pusher) String() string {
	var urls []string
	for _, c := range p.clients {
		urls = append(urls, c.String())
	}
	return fmt.Sprintf("to %s: %v", strings.Join(urls, " and "), p.Stats())
}
